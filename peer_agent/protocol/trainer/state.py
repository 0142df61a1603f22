"""A trainer's state: the run, the replica, the work and the round. Only `advance` owns and changes it."""

from collections import deque
from enum import StrEnum

from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sealed import OpenedPlan, OpenedRecord
from peer_agent.protocol.trainer import tokens


class Phase(StrEnum):
    ABSENT = "absent"  # no model state
    LOADING = "loading"
    FOLLOWING = "following"  # behind the latest entry, waiting for a record
    APPLYING = "applying"
    LACKING = "lacking"  # no relay has the next record's bytes
    ACCUMULATE = "accumulate"  # at the latest entry
    FREEZE = "freeze"  # cut, and encoding the gradient
    OFFER = "offer"  # has sent its offer, or is left out of the round
    REDUCE = "reduce"  # has the round's plan
    GONE = "gone"


ROUND = (Phase.FREEZE, Phase.OFFER, Phase.REDUCE)


class InHand(Struct, frozen=True):
    """The units being computed in one pass, which completes either all or none of them."""

    job: int
    units: tuple[Unit, ...]


class Done(Struct, frozen=True):
    """A computed unit's details: the step of the parameters used (`base`), the loss in nats, and the loss tokens."""

    base: int
    loss_sum: float
    loss_tokens: int


class Round(Struct):
    """A round, from its cut to its commit or void. All its attempts share one offer."""

    cut: m.Cut | m.SitOut
    attempt: int
    freeze: int  # number of the job encoding the offer; 0: no offer
    offer: m.Offer | None = None
    plan: OpenedPlan | None = None
    is_gathered: bool = False  # all of the attempt's averages have arrived
    is_dropped: bool = False  # the attempt goes on without this trainer's slot
    early: list[tuple[PeerId, m.Open]] = field(default_factory=list)  # reducers with a newer plan

    @property
    def slot(self) -> int | None:
        """The number of this trainer's slot in the plan, or None if the plan has no slot with this offer."""
        if self.plan is None or self.plan.own is None or self.offer is None or self.plan.own.root != self.offer.root:
            return None
        return self.plan.number


class TrainerState(Struct, kw_only=True):
    """A trainer between two events. Times are in the shell's `now` (monotonic seconds)."""

    run: RunId
    me: PeerId
    accumulator: AccumulatorId
    phase: Phase = Phase.ABSENT
    now: float = 0.0
    jobs: int = 0  # number of the last job
    # the run
    fence: int = 0  # the highest known fence
    vouched: int = 0  # fence of the last host known to have this replica's latest entry
    head: int = 0  # index of the latest known entry
    greeting: m.Greeting | None = None
    recipe: Recipe | None = None
    snapshot: m.Snapshot | None = None
    # the replica
    step: int = -1
    index: int = -1
    digest: str = ""
    log_digest: str = ""  # digest of the last record applied by this replica
    job: int = 0  # number of the loading or applying job
    loading: m.Snapshot | None = None
    applying: OpenedRecord | None = None
    retry_at: float = 0.0
    reloaded_at: int = -1  # step of the last Reload carried out by this trainer
    rolled_back: int = 0  # index of the last known rollback
    pending: dict[int, OpenedRecord] = field(default_factory=dict)  # records not yet applied, by index
    # The work: each unit is in exactly one of queue, in_hand, fresh and kept
    queue: deque[Unit] = field(default_factory=deque)
    coming: tuple[int, ...] = ()  # shards that units after the queue will come from
    in_one_pass: int = 1  # units that the device can compute at once, as last reported
    in_hand: InHand | None = None
    fresh: dict[Unit, Done] = field(default_factory=dict)  # never offered; in the fresh sum
    kept: dict[Unit, Done] = field(default_factory=dict)  # offered; in the held sum, with what updates left out
    held: tokens.Ranges = ()  # loss tokens by chunk of kept and carried work
    settled: dict[Unit, None] = field(default_factory=dict)  # recently included in updates; not computed again
    quota: int = 0
    passed_over: int = 0  # rounds in a row without this trainer
    # the round
    round: Round | None = None
    # the links
    url: str = ""  # where other peers can dial this trainer, or empty
    fingerprint: str = ""  # fingerprint of the certificate at `url`
    reserve_percent: int = 0  # percent of the uplink kept for the household
    reached: tuple[PeerId, ...] = ()  # listeners that this trainer has a data link to
    # messages sent
    unanswered: int = 0  # number of unanswered hellos; leases sent before the answer are ignored
    hello_at: float = 0.0
    hello_wait_s: float = 0.0
    hello_due: bool = False  # say hello once the replica is at the latest entry
    spoke_at: float = 0.0
    reported_at: float = 0.0
    reaches_at: float = 0.0
    gap_told: int = -1  # index at which a gap was last reported

    @property
    def done(self) -> tuple[m.DoneUnit, ...]:
        """The units whose gradients are in this trainer's sums but in no update."""
        return listed(self.kept) + listed(self.fresh)

    @property
    def undone(self) -> tuple[Unit, ...]:
        return (*(self.in_hand.units if self.in_hand else ()), *self.queue)

    @property
    def samples(self) -> int:
        return samples_of(self.kept) + samples_of(self.fresh)

    @property
    def loss_tokens(self) -> int:
        """The loss tokens of the units in `done`. Carried work of earlier units does not count."""
        return tokens_of(self.kept) + tokens_of(self.fresh)

    @property
    def loss_sum(self) -> float:
        """The sum of the losses over `loss_tokens`, in nats."""
        return loss_of(self.kept) + loss_of(self.fresh)

    @property
    def chunks(self) -> int:
        """The number of chunks in the parameter vector, or 0 until the greeting arrives."""
        return grid_of(self.greeting.elements).chunks if self.greeting else 0

    @property
    def carried(self) -> int:
        """The largest number of tokens that earlier updates left out of any one chunk."""
        return max(0, tokens.highest(self.held) - tokens_of(self.kept))

    @property
    def weights(self) -> tokens.Ranges:
        """The tokens of all work in this trainer's sums, new and carried, by chunk."""
        return tokens.added(self.held, tokens_of(self.fresh))

    @property
    def room(self) -> int:
        """The samples left in the quota (rule 22). Work that the open round may include does not count towards it."""
        is_offered = self.overlaps and self.round is not None
        return self.quota - (samples_of(self.fresh) if is_offered else self.samples)

    @property
    def is_full(self) -> bool:
        """True if the quota is used up, so that the trainer pauses until the next commit."""
        return self.room <= 0

    @property
    def staleness(self) -> int:
        """The maximum age of work that the recipe allows, in steps (rule 10)."""
        return self.recipe.staleness if self.recipe is not None else 0

    @property
    def overlaps(self) -> bool:
        """True if the trainer computes for the next round during a round."""
        return self.staleness > 0

    @property
    def is_at_head(self) -> bool:
        """True if the replica's entry is the latest that the trainer knows of."""
        return self.step >= 0 and self.index >= self.head

    @property
    def has_state(self) -> bool:
        return self.step >= 0


def listed(units: dict[Unit, Done]) -> tuple[m.DoneUnit, ...]:
    """Return the units in the format of the trainer's reports to the site."""
    return tuple(m.DoneUnit(unit, how.base) for unit, how in units.items())


def samples_of(units: dict[Unit, Done]) -> int:
    return sum(unit.samples for unit in units)


def tokens_of(units: dict[Unit, Done]) -> int:
    return sum(how.loss_tokens for how in units.values())


def loss_of(units: dict[Unit, Done]) -> float:
    return sum(how.loss_sum for how in units.values())


def new_trainer(run: RunId, me: PeerId, now: float, seed: int) -> TrainerState:
    """Return the state of a trainer in a new process. `seed`: 128 random bits that no other process uses."""
    return TrainerState(run=run, me=me, accumulator=accumulator_of(seed), now=now, spoke_at=now)


def accumulator_of(seed: int) -> AccumulatorId:
    return AccumulatorId(f"{seed:032x}")
