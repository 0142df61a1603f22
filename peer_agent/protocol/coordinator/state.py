"""What a coordinator knows of its run. Owned and changed by `advance` alone; time is `state.now`."""

from collections import Counter, deque
from enum import StrEnum

from msgspec import Struct, field

from peer_agent.protocol.bandwidth.flows import Capacity, Direction, Flow
from peer_agent.protocol.coordinator.events import Goal
from peer_agent.protocol.coordinator.leases import LeaseBook
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import Entry, Record, Unit
from peer_agent.protocol.messages import Listener, Offer, Plan, Shard, Slot, Snapshot, SpanDone, Void
from peer_agent.protocol.plan import Limit, Outline, Pair
from peer_agent.protocol.recipe import Codec, Recipe

DIVERGED = 4  # units not finite at one step, from every trainer
NO_ACCUMULATOR = AccumulatorId("")  # revoked, until the peer says hello with another
KEEPING_ROLES = frozenset({Role.RELAY})  # whose word that bytes are on its disk is taken
STAND_INS = 2  # trainers whose word is, where nobody of those is here, nor an auxiliary
RECORDS_WALKED = 16  # newest records that say what an accumulator may still carry
ARRIVALS_KEPT = 4096  # delays of offers
ROUNDS_KEPT = 20  # durations of accumulating, latenesses of chunks
MOST_LISTENERS = 64  # beside relays: everybody keeps a link to each of them


class Phase(StrEnum):
    """Where the run is in its round."""

    ACCUMULATE = "accumulate"
    OFFER = "offer"
    REDUCE = "reduce"
    COMMIT = "commit"


class Conduct(Struct):
    """How a machine has worked in this run, by the coordinator's clock. It outlives the machine's session."""

    seconds: list[float] = field(default_factory=list)  # a sample, of its last deliveries
    pace: float = 0.0  # samples a second: their median's inverse; 0 until the first delivery
    working_since: float | None = None  # since when it may work without having delivered
    worked_s: float = 0.0  # the same before that, since its last delivery, across rounds
    silent: bool = False  # it has delivered nothing for too long
    owes: bool = False  # it was dropped or did not offer; it counts again with its first delivered unit
    strikes: int = 0  # refused work, less what it did well since
    misses: int = 0  # rounds that it let down since its work was last in an update
    is_slow: bool = False  # in the last round that had it, its gradient was coming, and came too late
    out_until: int = 0  # the last round it sits out
    out_to: float = 0.0  # and when it is back at the earliest
    out_since: float = 0.0
    left_out: int = 0  # updates running that were made without it, since its link would have held up the others
    proven: int = 0  # most samples of one of its contributions
    nudge_s: float = 0.0  # of work without a delivery after which it is asked for a hello; 0: not set yet
    probed: int = 0  # how often its link was measured
    measured_with: set[PeerId] = field(default_factory=set)  # the last few of those at its other end


class Member(Struct):
    """A peer in the run, as far as the coordinator knows. `step` is that of its replica, -1 while it has none."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    accumulator: AccumulatorId
    heard_at: float
    joined_at: float = 0.0
    step: int = -1
    reconciled: bool = False  # what it holds has been judged; until then it is neither leased to nor waited for
    done: dict[Unit, int] = field(default_factory=dict)  # unit -> base step
    done_samples: int = 0  # in `done`
    quota: int = 0
    share: int = 0  # samples of the batch it is expected to make
    carried: int = 0  # most tokens that may still lie in chunks left out of earlier updates
    samples_per_token: float = 0.0
    url: str = ""
    fingerprint: str = ""
    reduces: bool = False
    may_keep: bool = False
    reaches: frozenset[PeerId] = frozenset()  # of those who can be dialled, by its own word
    measures: bool = False  # it has said whom it reaches
    reserve: float = 0.0  # the part of its uplink that its household keeps, by its own word
    uplink_told: float = 0.0  # bytes per second that it was told to keep to; 0: no limit
    told_slow: bool = False  # that averages come to it more slowly than steps are made
    stands_in: bool = False  # no relay keeps the log, so that this member's word has to do
    log_index: int = -1
    resent_to: int = -1  # the last index it was sent
    resent_at: float = 0.0  # since when an acknowledgement of it is awaited
    granted_at: float = 0.0  # when it was last leased something, and what
    granted: tuple[Unit, ...] = ()
    short_since: float | None = None  # since when it reports fewer leased units than the book has
    hello_asked_at: float | None = None
    conduct: Conduct = field(default_factory=Conduct)
    counted: tuple[bool, bool, int] = (False, False, 0)  # as it is in the sums: ready, awake, samples

    @property
    def trains(self) -> bool:
        """Whether it computes gradients."""
        return self.role is Role.TRAINER

    @property
    def takes_all(self) -> bool:
        """Whether it is told entries with all contributions, as a log has them."""
        return not self.trains or self.stands_in

    @property
    def keeps_log(self) -> bool:
        """Whether what it says it has is on its disk, as far as a commit relies on it."""
        return self.may_keep and (self.role in KEEPING_ROLES or self.stands_in)

    @property
    def is_reachable(self) -> bool:
        """Whether it can be dialled."""
        return bool(self.url)

    @property
    def samples_per_s(self) -> float:
        """As measured by its deliveries; 0 until the first."""
        return self.conduct.pace

    @property
    def name(self) -> str:
        """Person and machine, for people."""
        return f"{self.person} ({self.machine})"


class Departed(Struct):
    """An accumulator whose holder's session ended, and the round count then (leases last some rounds longer)."""

    accumulator: AccumulatorId
    peer: PeerId
    rounds: int
    carried: int = 0
    samples_per_token: float = 0.0


class Moved(Struct):
    """How far a reducer is with a slot in this attempt, and when that last changed."""

    chunks: int
    at: float


class Round(Struct):
    """One attempt to make an update, from the cut on."""

    number: int
    attempt: int
    persons: dict[PeerId, tuple[str, str]]  # person and machine of those asked,
    held: dict[PeerId, int]  # and samples that each had reported
    waiting: set[PeerId]  # waited for, and not answered yet
    cut_at: float
    deadline: float
    codec_down: Codec
    codecs: dict[PeerId, Codec]  # of those asked
    left_out: dict[PeerId, str] = field(default_factory=dict)  # of this round, and why
    repeat_at: float = 0.0  # when what may have been lost is said again
    offers: dict[PeerId, Offer] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    dropped: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # slots without which chunks closed, but for those that were dropped
    plan: Plan | None = None
    planned_at: float = 0.0
    limits: tuple[Limit, ...] = ()  # what the plan waits for
    hoped: float = 1.0  # in which part of its time it is over, if links carry what is hoped of them
    moved_at: float = 0.0  # when a chunk or a span of this attempt was last reported, or a slot dropped
    done: dict[int, SpanDone] = field(default_factory=dict)  # span -> what its reducer said of it
    kept: dict[int, set[PeerId]] = field(default_factory=dict)  # span -> who said to have its bytes, under that root
    gathered: dict[PeerId, bytes] = field(default_factory=dict)  # who has all averages, under which root
    done_at: float | None = None  # when the last span was reported
    progress: dict[PeerId, dict[int, Moved]] = field(default_factory=dict)  # reducer -> slot
    reported: dict[PeerId, float] = field(default_factory=dict)  # reducer -> its last word on this attempt
    hung: set[PeerId] = field(default_factory=set)  # reducers that stood still while another could do their part
    attempts: int = 1
    record: Record | None = None
    persist_at: float | None = None  # when the database is asked again
    persist_pause_s: float = 0.0
    ended: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)  # leases that end with the round

    @property
    def is_planned(self) -> bool:
        """Whether the current attempt has its plan; not while there is nobody to reduce it."""
        return self.plan is not None and self.plan.attempt == self.attempt


class Ballot(Struct):
    """What machines say of one thing (a state's digest, a snapshot's hash), counted by person (rule 17)."""

    votes: dict[PeerId, tuple[str, str]] = field(default_factory=dict)  # machine -> person, value
    persons: dict[str, Counter[str]] = field(default_factory=dict)  # person -> value -> machines
    counts: Counter[str] = field(default_factory=Counter)  # value -> persons all of whose machines say it
    machines: Counter[str] = field(default_factory=Counter)  # value -> machines that say it
    abstaining: int = 0  # persons whose machines differ
    split_since: float | None = None  # since when there are two values and no majority
    value: str = ""  # decided


class Measured(Struct):
    """An attempt whose flows are gathered: who has told of them, and what."""

    plan: Plan
    planned_at: float
    hoped_s: float = 0.0  # in which all of it would come, if links carried what is hoped of them
    told: set[tuple[PeerId, bool]] = field(default_factory=set)  # and whether as one who holds all averages
    gradients: list[Flow] = field(default_factory=list)
    averages: list[Flow] = field(default_factory=list)
    full_s: dict[Pair, float] = field(default_factory=dict)  # in which the way of a gradient took no more
    held_s: dict[Pair, float] = field(default_factory=dict)  # of that, in which its reducer read nothing


class LinkProbe(Struct):
    """A link that is being measured: whose, to whom, since when, and which of the two has said what came."""

    member: PeerId
    listener: PeerId
    begun_at: float
    rounds: int  # that there had been by then
    told: set[PeerId] = field(default_factory=set)


class Late(Struct):
    """How late each contributor's chunks came in an attempt, in parts of the plan's time, where they came last."""

    place: tuple[int, int, int]  # fence, step, attempt
    by: dict[PeerId, float] = field(default_factory=dict)


class Inclusion(Struct, frozen=True):
    """How an accumulator was in one update: `is_whole` where nothing of it was left out."""

    is_whole: bool
    weight: int  # loss tokens offered
    samples: int  # in the units settled


class Keeper(Struct, frozen=True):
    """Who was asked to hand in the state of an entry, and when."""

    peer: PeerId
    index: int
    step: int
    asked_at: float


class Chosen(Struct, frozen=True, kw_only=True):
    """What the plan has chosen for the next round, as it was last compared: codecs and contributors (rules 14, 30).

    Who is neither in `codecs` nor left out is not known well enough: it contributes in the stated codec.
    """

    codecs: dict[PeerId, Codec]
    codec_down: Codec
    left_out: dict[PeerId, str] = {}  # and why
    cannot_follow: frozenset[PeerId] = frozenset()  # of those left out, to whom averages come too slowly
    step_s: float = 0.0  # from one update to the next


class RunState(Struct, kw_only=True):
    """A run between two events. Time is whatever the host passes as `now` (monotonic seconds), less its sleep."""

    run: RunId
    slug: str
    title: str
    fence: int
    recipe: Recipe
    recipe_bytes: bytes
    elements: int
    shards: tuple[Shard, ...]
    site_key: bytes
    snapshot: Snapshot  # the newest that newcomers may load
    covered: int = 0  # the index of the snapshot before it: who loads that one is still served
    verified: int = 0  # the index of the newest snapshot that the site has replayed
    leases: LeaseBook
    index: int = 0
    step: int = 0
    digest: str
    rolled_back: int = 0  # the index of the last entry that undid others; 0: there is none
    rolling: Record | None = None  # such an entry, while it is written
    goal: Goal = "running"
    ending_since: float = 0.0  # when the organizer ended the run early
    started: bool = False
    finished: bool = False
    sealed: Entry | None = None  # the last committed record
    # the round
    phase: Phase = Phase.ACCUMULATE
    round: Round | None = None
    rounds: int = 0  # numbers given to rounds
    attempt: int = 0  # numbers given to attempts since the last commit
    void_rounds: int = 0
    late_rounds: int = 0  # void one after another because offers came too late
    slow_rounds: int = 0  # void one after another because nothing moved
    accumulating_since: float = 0.0
    batch_since: float = 0.0  # since when the batch is made: from the last commit, or its cut where work overlaps that
    accumulated: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))  # seconds that a batch took
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=ARRIVALS_KEPT))  # seconds from cut to offer
    applying: set[PeerId] = field(default_factory=set)  # were in the last update, and have not said that they hold it
    applying_since: float = 0.0  # the commit; 0 of a new host, which waits for their return
    applying_until: float = 0.0
    applied: deque[float] = field(default_factory=lambda: deque(maxlen=ARRIVALS_KEPT))  # seconds from commit to that
    measured: Measured | None = None  # the attempt that was planned last
    outline: Outline | None = None  # the last plan as people see it
    latenesses: deque[Late] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    capacities: dict[Direction, Capacity] = field(default_factory=dict)  # what links are known to carry
    pairs: dict[Pair, Capacity] = field(default_factory=dict)  # the same from one to another, where that is less
    chosen: Chosen | None = None  # None: nothing was compared yet
    probes: dict[int, LinkProbe] = field(default_factory=dict)  # by number
    probe_number: int = 0  # the last
    voided: Void | None = None  # the last, and who has not been seen to know of it
    voided_for: set[PeerId] = field(default_factory=set)
    voided_again_at: float = 0.0
    # who is there
    members: dict[PeerId, Member] = field(default_factory=dict)
    listening: dict[PeerId, Member] = field(default_factory=dict)  # those that can be dialled
    reached: set[PeerId] = field(default_factory=set)  # of these, beside relays, who may reduce: the others reach them
    departed: dict[PeerId, Departed] = field(default_factory=dict)
    holders: dict[AccumulatorId, PeerId] = field(default_factory=dict)  # of members and departed
    conducts: dict[PeerId, Conduct] = field(default_factory=dict)  # of machines that are away
    ready_count: int = 0  # sums over members: trainers at the head,
    awake_count: int = 0  # those that a round may count on,
    awake_samples: int = 0  # and what these have done
    rate: float = 0.0  # samples of the batch for one sample a second, as shares were last dealt
    is_lifted: bool = False  # accumulating takes too long: quotas do not hold
    has_amnesty: bool = False  # without those who sit out the batch would take too long
    amnesties: int = 0  # void rounds with it since the last update
    amnesty_from: float = 0.0
    is_dirty: bool = False  # leases and shares of all have to be looked at
    # votes
    recent: dict[str, int] = field(default_factory=dict)  # person -> the last index it is in
    voters: int = 0  # persons lately included who have a machine that is awake
    digests: dict[int, Ballot] = field(default_factory=dict)  # step ->
    split_since: float | None = None  # since when no digest is agreed while two are reported
    replay: tuple[int, int, float] | None = None  # index and step that the site was asked to replay, and when
    inclusions: deque[dict[AccumulatorId, Inclusion]] = field(default_factory=lambda: deque(maxlen=RECORDS_WALKED))
    # snapshots
    snapshot_due: bool = False
    keeper: Keeper | None = None
    hashes: tuple[int, int, Ballot] | None = None  # index, step, votes on the sha256 and size of the state there
    admitted: int = 0  # the newest index whose hash a majority has reported
    replay_at: float | None = None  # nobody can hand in the last state: when the site is asked to make it
    # leases
    reserving: bool = False
    until_look: int = 0  # samples to be dealt before marks are looked at again, where that was in vain
    orphans_until: int = 0  # commits after which unclaimed units come back
    non_finite: dict[PeerId, int] = field(default_factory=dict)  # units returned as such since the last finite one
    # time and words
    waiting: str = ""
    now: float = 0.0
    clock: float | None = None  # the host's, at the last event
    slept_s: float = 0.0  # of the host: no deadline moves in it
    look_at: float = 0.0  # when ticks look at everything again
    sweep_at: float = 0.0  # when every member is looked at again
    moved_at: float = 0.0  # when something was last delivered, offered, averaged or committed

    @property
    def grid(self) -> Grid:
        """The chunk grid of the parameter vector."""
        return grid_of(self.elements)

    @property
    def done(self) -> bool:
        """Whether the last step is committed. Ended early, that is the one before or the one of the open round."""
        return self.step >= self.recipe.target_steps or (self.goal == "finishing" and self.round is None)

    def is_undone(self, index: int) -> bool:
        """Whether a replica or a log that ends there lacks the last rollback: its step then says nothing."""
        return self.rolled_back > max(index, 0)

    def trainers(self) -> list[Member]:
        """Members that compute gradients."""
        return [member for member in self.members.values() if member.trains]

    def ready(self) -> list[Member]:
        """Trainers whose replica is at the head and whose leases are known."""
        return [member for member in self.members.values() if member.counted[0]]

    def awake(self) -> list[Member]:
        """Trainers at the head that a round may count on."""
        return [member for member in self.members.values() if member.counted[1]]

    @property
    def has_diverged(self) -> bool:
        """Whether no machine gets finite gradients out of the model any more: more samples would only be wasted."""
        if not self.ready_count or len(self.non_finite) < self.ready_count:
            return False
        return all(self.non_finite.get(member.peer, 0) >= DIVERGED for member in self.ready())

    @property
    def has_quorum(self) -> bool:
        """Whether enough trainers are in sync; that counts before the first round alone."""
        return self.ready_count >= (1 if self.started else self.recipe.minimum_trainers)

    def reducers(self) -> list[Member]:
        """Members that may be planned a part, by id: not those that let a round down, unless there is no other.

        Where nobody sits out, since the others cannot fill a batch, that holds for those alone that kept one from its
        end: else a round that all had missed would leave all of the vector to a single auxiliary.
        """
        able = sorted((p for p in self.listening.values() if self.may_reduce(p)), key=lambda p: p.peer)
        moving = [p for p in able if self.round is None or p.peer not in self.round.hung] or able
        is_out = {p.peer for p in moving if self.sits_out(p.conduct) and (p.conduct.strikes or not self.has_amnesty)}
        return [p for p in moving if p.peer not in is_out] or moving

    def can_reduce(self) -> bool:
        """Whether there is anybody to reduce."""
        return any(self.may_reduce(member) for member in self.listening.values())

    def may_reduce(self, member: Member) -> bool:
        """Whether it averages spans, and is reached by those whose gradients that takes."""
        return member.reduces and (member.role is Role.RELAY or member.peer in self.reached)

    def sits_out(self, conduct: Conduct) -> bool:
        """Whether the open round, or else the next one, does without this machine because of an earlier one."""
        number = self.rounds + (self.round is None)
        is_out = number <= conduct.out_until or self.now < conduct.out_to
        return is_out and self.now - conduct.out_since < LONGEST_OUT_S

    def listeners(self) -> tuple[Listener, ...]:
        """Who can be dialled, by id: all relays, and of the others those that came first."""
        relays = [member for member in self.listening.values() if member.role is Role.RELAY]
        others = [member for member in self.listening.values() if member.role is not Role.RELAY]
        others.sort(key=lambda p: (p.trains, p.joined_at, p.peer))
        by_id = sorted(relays + others[:MOST_LISTENERS], key=lambda p: p.peer)
        return tuple(Listener(p.peer, p.url, p.fingerprint, p.reduces, p.keeps_log) for p in by_id)

    def everyone(self) -> tuple[PeerId, ...]:
        """All members, in the order of their coming."""
        return tuple(self.members)


LONGEST_OUT_S = 3600.0


def stated(recipe: Recipe) -> Chosen:
    """Everybody, as the recipe says."""
    return Chosen(codecs={}, codec_down=recipe.codec_down)
