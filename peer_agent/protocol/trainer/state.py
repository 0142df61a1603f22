"""The state of a trainer: its run, its rounds and itself. Only `advance` owns and changes it."""

from collections import deque
from enum import StrEnum

from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.trainer import tokens
from peer_agent.protocol.trainer.opened import OpenedPlan, OpenedRecord


class Phase(StrEnum):
    ABSENT = "absent"  # without a state
    LOADING = "loading"
    FOLLOWING = "following"  # behind the head, waiting for a record
    APPLYING = "applying"
    LACKING = "lacking"  # no relay has the bytes of the next record
    ACCUMULATE = "accumulate"  # at the head
    FREEZE = "freeze"  # it was cut
    OFFER = "offer"  # it has offered, or is left out of the round
    REDUCE = "reduce"  # there is a plan
    GONE = "gone"


ROUND = (Phase.FREEZE, Phase.OFFER, Phase.REDUCE)


class InHand(Struct, frozen=True):
    """The units being computed in one pass, which completes all of them or none."""

    job: int
    units: tuple[Unit, ...]


class Done(Struct, frozen=True):
    """How a unit was computed: the step of the parameters, its loss in nats and its loss tokens."""

    base: int
    loss_sum: float
    loss_tokens: int


class Round(Struct):
    """A round from its cut to commit or void. Its attempts share one offer."""

    cut: m.Cut | m.SitOut
    attempt: int
    freeze: int  # its job; 0: nothing is offered
    offer: m.Offer | None = None
    plan: OpenedPlan | None = None
    is_gathered: bool = False  # all averages of the attempt are here
    is_dropped: bool = False  # the attempt goes on without our slot
    early: list[tuple[PeerId, m.Open]] = field(default_factory=list)  # reducers that had the plan before us

    @property
    def slot(self) -> int | None:
        """Our number in the plan; None if the plan has no slot with our offer."""
        if self.plan is None or self.plan.own is None or self.offer is None or self.plan.own.root != self.offer.root:
            return None
        return self.plan.number


class TrainerState(Struct, kw_only=True):
    """A trainer between two events. Time is the shell's `now` (monotonic seconds)."""

    run: RunId
    me: PeerId
    accumulator: AccumulatorId
    phase: Phase = Phase.ABSENT
    now: float = 0.0
    jobs: int = 0  # job numbers given
    # the run
    fence: int = 0  # the highest heard of
    vouched: int = 0  # the fence of the host that last reported an entry as new as ours
    head: int = 0  # the newest entry heard of
    greeting: m.Greeting | None = None
    recipe: Recipe | None = None
    snapshot: m.Snapshot | None = None
    # the replica
    step: int = -1
    index: int = -1
    digest: str = ""
    job: int = 0  # the job that loads or applies
    loading: m.Snapshot | None = None
    applying: OpenedRecord | None = None
    retry_at: float = 0.0
    reloaded_at: int = -1  # the step of the last Reload that was followed
    rolled_back: int = 0  # index of the last rollback heard of
    pending: dict[int, OpenedRecord] = field(default_factory=dict)  # records ahead, by index
    # the work: a unit is in the queue, in hand, fresh or kept
    queue: deque[Unit] = field(default_factory=deque)
    coming: tuple[int, ...] = ()  # shards of the units after those
    in_one_pass: int = 1  # units that the device takes, by its last report
    in_hand: InHand | None = None
    fresh: dict[Unit, Done] = field(default_factory=dict)  # never offered: a separate sum, can be computed again
    kept: dict[Unit, Done] = field(default_factory=dict)  # offered before: in one sum with what updates left out
    held: tokens.Ranges = ()  # loss tokens of what is kept and carried, by chunk
    settled: dict[Unit, None] = field(default_factory=dict)  # recently included in updates: never leased again
    quota: int = 0
    passed_over: int = 0  # rounds in a row that were cut without us
    # the round
    round: Round | None = None
    # the links
    url: str = ""  # where it can be dialled, or empty
    fingerprint: str = ""  # of its certificate there
    reserve_percent: int = 0  # of its uplink: the household's reserve
    reached: tuple[PeerId, ...] = ()  # listeners to which there is a data link
    # what was said
    unanswered: int = 0  # hellos: leases granted before them may not match what the host knows
    hello_at: float = 0.0
    hello_wait_s: float = 0.0
    hello_due: bool = False  # at the head
    spoke_at: float = 0.0
    reported_at: float = 0.0
    reaches_at: float = 0.0
    gap_told: int = -1  # the index at which a gap was last reported

    @property
    def done(self) -> tuple[m.DoneUnit, ...]:
        """Units whose gradients are here and in no update."""
        return listed(self.kept) + listed(self.fresh)

    @property
    def undone(self) -> tuple[Unit, ...]:
        return (*(self.in_hand.units if self.in_hand else ()), *self.queue)

    @property
    def samples(self) -> int:
        return samples_of(self.kept) + samples_of(self.fresh)

    @property
    def loss_tokens(self) -> int:
        """Loss tokens of what is done, without those that updates left out."""
        return tokens_of(self.kept) + tokens_of(self.fresh)

    @property
    def loss_sum(self) -> float:
        """The summed loss over `loss_tokens`, in nats."""
        return loss_of(self.kept) + loss_of(self.fresh)

    @property
    def chunks(self) -> int:
        """Chunks of the parameter vector; 0 until it is known."""
        return grid_of(self.greeting.elements).chunks if self.greeting else 0

    @property
    def carried(self) -> int:
        """Most tokens in a chunk that earlier updates left out."""
        return max(0, tokens.highest(self.held) - tokens_of(self.kept))

    @property
    def weights(self) -> tokens.Ranges:
        """Tokens by chunk of all that is here, new and carried."""
        return tokens.added(self.held, tokens_of(self.fresh))

    @property
    def room(self) -> int:
        """Samples left of its quota (rule 22). What an open round may take does not count for the next."""
        is_offered = self.overlaps and self.round is not None
        return self.quota - (samples_of(self.fresh) if is_offered else self.samples)

    @property
    def is_full(self) -> bool:
        """True if it rests until the next commit."""
        return self.room <= 0

    @property
    def staleness(self) -> int:
        """Steps that its work may be old by design (rule 10)."""
        return self.recipe.staleness if self.recipe is not None else 0

    @property
    def overlaps(self) -> bool:
        """True if it computes during a round, for the next one."""
        return self.staleness > 0

    @property
    def is_at_head(self) -> bool:
        """True if its state is the newest it has heard of."""
        return self.step >= 0 and self.index >= self.head

    @property
    def has_state(self) -> bool:
        return self.step >= 0


def listed(units: dict[Unit, Done]) -> tuple[m.DoneUnit, ...]:
    """Return the units as they are reported to the site."""
    return tuple(m.DoneUnit(unit, how.base) for unit, how in units.items())


def samples_of(units: dict[Unit, Done]) -> int:
    return sum(unit.samples for unit in units)


def tokens_of(units: dict[Unit, Done]) -> int:
    return sum(how.loss_tokens for how in units.values())


def loss_of(units: dict[Unit, Done]) -> float:
    return sum(how.loss_sum for how in units.values())


def new_trainer(run: RunId, me: PeerId, now: float, seed: int) -> TrainerState:
    """Return the state of a new process. `seed`: 128 bits that no other process had."""
    return TrainerState(run=run, me=me, accumulator=accumulator_of(seed), now=now, spoke_at=now)


def accumulator_of(seed: int) -> AccumulatorId:
    return AccumulatorId(f"{seed:032x}")
