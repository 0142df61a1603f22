"""A coordinator's state. Only `advance` owns and changes it; time is `state.now`."""

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

DIVERGED = 4  # non-finite units at one step, from every trainer
NO_ACCUMULATOR = AccumulatorId("")  # revoked, until the peer says hello with another
KEEPING_ROLES = frozenset({Role.RELAY})  # roles whose claim that bytes are on disk is trusted
STAND_INS = 2  # trainers whose claim counts if no peer of these roles and no auxiliary is present
RECORDS_WALKED = 16  # newest records that show what an accumulator may still carry
ARRIVALS_KEPT = 4096  # delays of offers
ROUNDS_KEPT = 20  # durations of accumulating, latenesses of chunks
MOST_LISTENERS = 64  # besides relays: every peer keeps a link to each of them


class Phase(StrEnum):
    ACCUMULATE = "accumulate"
    OFFER = "offer"
    REDUCE = "reduce"
    COMMIT = "commit"


class Conduct(Struct):
    """How a machine has worked in this run, by the coordinator's clock. It outlives the machine's session."""

    seconds: list[float] = field(default_factory=list)  # a sample, of its last deliveries
    pace: float = 0.0  # samples a second: the inverse of their median; 0 until the first delivery
    working_since: float | None = None  # since when it may work without having delivered
    worked_s: float = 0.0  # earlier working time since its last delivery, across rounds
    silent: bool = False  # it has delivered nothing for too long
    owes: bool = False  # it was dropped or did not offer; it counts again after its first delivered unit
    strikes: int = 0  # refused work, reduced by good work since
    misses: int = 0  # rounds it failed since its work was last in an update
    is_slow: bool = False  # in its last round its gradient was arriving, but too late
    out_until: int = 0  # the last round it sits out
    out_to: float = 0.0  # the earliest time of its return
    out_since: float = 0.0
    left_out: int = 0  # updates in a row made without it, because its link would have slowed the others
    proven: int = 0  # most samples of one of its contributions
    nudge_s: float = 0.0  # of work without a delivery after which it is asked for a hello; 0: not set yet
    probed: int = 0  # how often its link was measured
    measured_with: set[PeerId] = field(default_factory=set)  # the last few peers at the other end of a probe


class Member(Struct):
    """A peer in the run, as the coordinator knows it. `step` is its replica's, -1 while it has none."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    accumulator: AccumulatorId
    heard_at: float
    joined_at: float = 0.0
    step: int = -1
    reconciled: bool = False  # what it holds has been checked; before that it is neither leased to nor waited for
    done: dict[Unit, int] = field(default_factory=dict)  # unit -> base step
    done_samples: int = 0  # in `done`
    quota: int = 0
    share: int = 0  # samples of the batch it is expected to make
    carried: int = 0  # most tokens that chunks left out of earlier updates may still hold
    samples_per_token: float = 0.0
    url: str = ""
    fingerprint: str = ""
    reduces: bool = False
    may_keep: bool = False
    reaches: frozenset[PeerId] = frozenset()  # listeners it has links to, by its own claim
    measures: bool = False  # it has reported whom it reaches
    reserve: float = 0.0  # the part of its uplink that its household keeps, by its own claim
    uplink_told: float = 0.0  # bytes per second that it was told to keep to; 0: no limit
    told_slow: bool = False  # it was told that averages reach it more slowly than steps are made
    stands_in: bool = False  # no relay keeps the log, so this member's claim counts
    log_index: int = -1
    resent_to: int = -1  # the last index it was sent
    resent_at: float = 0.0  # since when an acknowledgement of it is awaited
    granted_at: float = 0.0  # when it was last leased units, and which
    granted: tuple[Unit, ...] = ()
    short_since: float | None = None  # since when it reports fewer leased units than the book has
    hello_asked_at: float | None = None
    conduct: Conduct = field(default_factory=Conduct)
    counted: tuple[bool, bool, int] = (False, False, 0)  # as counted in the sums: ready, awake, samples

    @property
    def trains(self) -> bool:
        return self.role is Role.TRAINER

    @property
    def takes_all(self) -> bool:
        """True if it gets entries with all contributions, as a log has them."""
        return not self.trains or self.stands_in

    @property
    def keeps_log(self) -> bool:
        """True if a commit may rely on its claim that bytes are on its disk."""
        return self.may_keep and (self.role in KEEPING_ROLES or self.stands_in)

    @property
    def is_reachable(self) -> bool:
        return bool(self.url)

    @property
    def samples_per_s(self) -> float:
        """Samples per second, measured from its deliveries; 0 until the first."""
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
    """How many chunks of a slot a reducer has in this attempt, and when that last changed."""

    chunks: int
    at: float


class Round(Struct):
    """A try to make an update, from the cut on."""

    number: int
    attempt: int
    persons: dict[PeerId, tuple[str, str]]  # person and machine of those asked
    held: dict[PeerId, int]  # samples that each of them had reported
    waiting: set[PeerId]  # waited for, and not answered yet
    cut_at: float
    deadline: float
    codec_down: Codec
    codecs: dict[PeerId, Codec]  # of those asked
    left_out: dict[PeerId, str] = field(default_factory=dict)  # of this round, and why
    repeat_at: float = 0.0  # when messages that may have been lost are repeated
    offers: dict[PeerId, Offer] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    dropped: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # slots that closed chunks lack, without those that were dropped
    plan: Plan | None = None
    planned_at: float = 0.0
    limits: tuple[Limit, ...] = ()  # what the plan waits for
    hoped: float = 1.0  # the part of the plan's time that suffices if links carry what the plan assumes
    moved_at: float = 0.0  # when a chunk or span of this attempt was last reported, or a slot dropped
    done: dict[int, SpanDone] = field(default_factory=dict)  # span -> its reducer's report
    kept: dict[int, set[PeerId]] = field(default_factory=dict)  # span -> peers that reported its bytes, under that root
    gathered: dict[PeerId, bytes] = field(default_factory=dict)  # peers that reported all averages, and under what root
    done_at: float | None = None  # when the last span was reported
    progress: dict[PeerId, dict[int, Moved]] = field(default_factory=dict)  # reducer -> slot
    reported: dict[PeerId, float] = field(default_factory=dict)  # reducer -> time of its last report on this attempt
    hung: set[PeerId] = field(default_factory=set)  # reducers that stood still while another could take over
    attempts: int = 1
    record: Record | None = None
    persist_at: float | None = None  # when the database is asked again
    persist_pause_s: float = 0.0
    ended: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)  # leases that end with the round

    @property
    def is_planned(self) -> bool:
        """True if the current attempt has its plan. It has none while no member can reduce."""
        return self.plan is not None and self.plan.attempt == self.attempt


class Ballot(Struct):
    """Machines' reports of one thing (a state's digest, a snapshot's hash), counted by person (rule 17)."""

    votes: dict[PeerId, tuple[str, str]] = field(default_factory=dict)  # machine -> person, value
    persons: dict[str, Counter[str]] = field(default_factory=dict)  # person -> value -> machines
    counts: Counter[str] = field(default_factory=Counter)  # value -> persons all of whose machines report it
    machines: Counter[str] = field(default_factory=Counter)  # value -> machines that report it
    abstaining: int = 0  # persons whose machines differ
    split_since: float | None = None  # since when there are two values and no majority
    value: str = ""  # decided


class Measured(Struct):
    """An attempt whose flows are collected: who has reported, and what."""

    plan: Plan
    planned_at: float
    hoped_s: float = 0.0  # in which all of it would come if links carried what the plan assumes
    told: set[tuple[PeerId, bool]] = field(default_factory=set)  # peer, and whether it then held all averages
    gradients: list[Flow] = field(default_factory=list)
    averages: list[Flow] = field(default_factory=list)
    full_s: dict[Pair, float] = field(default_factory=dict)  # in which a gradient's link was full
    held_s: dict[Pair, float] = field(default_factory=dict)  # of that, in which the reducer paused reading


class LinkProbe(Struct):
    """A link probe: its two ends, its beginning, and who has reported."""

    member: PeerId
    listener: PeerId
    begun_at: float
    rounds: int  # rounds until then
    told: set[PeerId] = field(default_factory=set)


class Late(Struct):
    """Each contributor's lateness in an attempt, at its slowest reducer, in parts of the plan's time."""

    place: tuple[int, int, int]  # fence, step, attempt
    by: dict[PeerId, float] = field(default_factory=dict)


class Inclusion(Struct, frozen=True):
    """How an accumulator was included in one update. `is_whole`: nothing of it was left out."""

    is_whole: bool
    weight: int  # loss tokens offered
    samples: int  # in the units settled


class Keeper(Struct, frozen=True):
    """The trainer that was asked to upload an entry's state, and when."""

    peer: PeerId
    index: int
    step: int
    asked_at: float


class Chosen(Struct, frozen=True, kw_only=True):
    """Codecs and contributors chosen for the next round, by the last comparison (rules 14, 30)."""

    codecs: dict[PeerId, Codec]  # peers neither here nor left out are too little known: they use the stated codec
    codec_down: Codec
    left_out: dict[PeerId, str] = {}  # and why
    cannot_follow: frozenset[PeerId] = frozenset()  # of those left out: averages reach them too slowly
    step_s: float = 0.0  # from one update to the next


class RunState(Struct, kw_only=True):
    """A run between two events. Time is the host's `now` (monotonic seconds) less the time it slept."""

    run: RunId
    slug: str
    title: str
    fence: int
    recipe: Recipe
    recipe_bytes: bytes
    elements: int
    shards: tuple[Shard, ...]
    site_key: bytes
    snapshot: Snapshot  # the newest that new peers may load
    covered: int = 0  # index of the snapshot before it: peers that load that one are still served
    verified: int = 0  # index of the newest snapshot that the site has replayed
    leases: LeaseBook
    index: int = 0
    step: int = 0
    digest: str
    rolled_back: int = 0  # index of the last rollback; 0: there is none
    rolling: Record | None = None  # a rollback's record while it is written
    goal: Goal = "running"
    ending_since: float = 0.0  # when the organizer ended the run early
    started: bool = False
    finished: bool = False
    sealed: Entry | None = None  # the last committed record
    # the round
    phase: Phase = Phase.ACCUMULATE
    round: Round | None = None
    rounds: int = 0  # round numbers given
    attempt: int = 0  # attempt numbers given since the last commit
    void_rounds: int = 0
    late_rounds: int = 0  # void in a row because offers came too late
    slow_rounds: int = 0  # void in a row because nothing moved
    accumulating_since: float = 0.0
    batch_since: float = 0.0  # when the batch began: at the last commit, or at its cut if work overlaps the round
    accumulated: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))  # seconds that a batch took
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=ARRIVALS_KEPT))  # seconds from cut to offer
    applying: set[PeerId] = field(default_factory=set)  # in the last update, and not yet reported to hold it
    applying_since: float = 0.0  # the commit; 0 for a new host, which waits for their return
    applying_until: float = 0.0
    applied: deque[float] = field(default_factory=lambda: deque(maxlen=ARRIVALS_KEPT))  # seconds from commit to report
    measured: Measured | None = None  # the attempt that was planned last
    outline: Outline | None = None  # the last plan as people see it
    latenesses: deque[Late] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    capacities: dict[Direction, Capacity] = field(default_factory=dict)  # estimates of links
    pairs: dict[Pair, Capacity] = field(default_factory=dict)  # the same from one peer to another, where that is less
    chosen: Chosen | None = None  # None: nothing was compared yet
    probes: dict[int, LinkProbe] = field(default_factory=dict)  # by number
    probe_number: int = 0  # the last one given
    voided: Void | None = None  # the last void, and the peers that may not know of it
    voided_for: set[PeerId] = field(default_factory=set)
    voided_again_at: float = 0.0
    # who is there
    members: dict[PeerId, Member] = field(default_factory=dict)
    listening: dict[PeerId, Member] = field(default_factory=dict)  # those that can be dialled
    reached: set[PeerId] = field(default_factory=set)  # listeners besides relays that may reduce: the others reach them
    departed: dict[PeerId, Departed] = field(default_factory=dict)
    holders: dict[AccumulatorId, PeerId] = field(default_factory=dict)  # of members and departed ones
    conducts: dict[PeerId, Conduct] = field(default_factory=dict)  # of machines that are away
    ready_count: int = 0  # sums over members: trainers at the head,
    awake_count: int = 0  # those that a round may count on,
    awake_samples: int = 0  # and the samples these have done
    is_lifted: bool = False  # accumulating takes too long: quotas are suspended
    has_amnesty: bool = False  # quarantines are suspended, as the batch would take too long without those machines
    amnesties: int = 0  # void rounds with suspended quarantines since the last update
    amnesty_from: float = 0.0
    is_dirty: bool = False  # all leases and shares must be checked
    # votes
    recent: dict[str, int] = field(default_factory=dict)  # person -> the last index it is in
    voters: int = 0  # persons recently included who have a working machine
    digests: dict[int, Ballot] = field(default_factory=dict)  # step -> votes
    split_since: float | None = None  # since when no digest is agreed while two are reported
    replay: tuple[int, int, float] | None = None  # index and step that the site was asked to replay, and when
    inclusions: deque[dict[AccumulatorId, Inclusion]] = field(default_factory=lambda: deque(maxlen=RECORDS_WALKED))
    # snapshots
    snapshot_due: bool = False
    keeper: Keeper | None = None
    hashes: tuple[int, int, Ballot] | None = None  # index, step, votes on the sha256 and size of the state there
    admitted: int = 0  # the newest index whose hash a majority has reported
    replay_at: float | None = None  # no trainer can upload the last state: when the site is asked to rebuild it
    # leases
    reserving: bool = False
    until_look: int = 0  # samples to deal before the marks are checked again, after a check in vain
    orphans_until: int = 0  # the step at which unclaimed units return
    non_finite: dict[PeerId, int] = field(default_factory=dict)  # units returned as such since the last finite one
    # time and words
    waiting: str = ""
    now: float = 0.0
    clock: float | None = None  # the host's, at the last event
    slept_s: float = 0.0  # seconds that the host slept: deadlines do not move in them
    look_at: float = 0.0  # when a tick does its work again
    sweep_at: float = 0.0  # when every member is visited again
    moved_at: float = 0.0  # when something was last delivered, offered, averaged or committed

    @property
    def grid(self) -> Grid:
        return grid_of(self.elements)

    @property
    def done(self) -> bool:
        """True if the last step is committed. A run ended early ends with the open round, or without one at once."""
        return self.step >= self.recipe.target_steps or (self.goal == "finishing" and self.round is None)

    def is_undone(self, index: int) -> bool:
        """Return True if a replica or log that ends at `index` lacks the last rollback: its step then means nothing."""
        return self.rolled_back > max(index, 0)

    def trainers(self) -> list[Member]:
        return [member for member in self.members.values() if member.trains]

    def ready(self) -> list[Member]:
        """Return the trainers at the head whose leases are known."""
        return [member for member in self.members.values() if member.counted[0]]

    def awake(self) -> list[Member]:
        """Return the trainers at the head that a round may count on."""
        return [member for member in self.members.values() if member.counted[1]]

    @property
    def has_diverged(self) -> bool:
        """True if no trainer at the head gets finite gradients any more: further samples would be wasted."""
        if not self.ready_count or len(self.non_finite) < self.ready_count:
            return False
        return all(self.non_finite.get(member.peer, 0) >= DIVERGED for member in self.ready())

    @property
    def has_quorum(self) -> bool:
        """True if enough trainers are in sync to begin. After the first round one is enough."""
        return self.ready_count >= (1 if self.started else self.recipe.minimum_trainers)

    def reducers(self) -> list[Member]:
        """Return the members that get a part of the plan, by id: those not quarantined, or all if none is left.

        While quarantines are suspended, only members that were refused or blocked a round stay out. Otherwise a round
        that every member missed would leave the whole vector to one auxiliary.
        """
        able = sorted((p for p in self.listening.values() if self.may_reduce(p)), key=lambda p: p.peer)
        moving = [p for p in able if self.round is None or p.peer not in self.round.hung] or able
        is_out = {p.peer for p in moving if self.sits_out(p.conduct) and (p.conduct.strikes or not self.has_amnesty)}
        return [p for p in moving if p.peer not in is_out] or moving

    def can_reduce(self) -> bool:
        return any(self.may_reduce(member) for member in self.listening.values())

    def may_reduce(self, member: Member) -> bool:
        """Return True if the member averages spans and the contributors reach it."""
        return member.reduces and (member.role is Role.RELAY or member.peer in self.reached)

    def sits_out(self, conduct: Conduct) -> bool:
        """Return True if the open or next round goes without this machine because of earlier failures."""
        number = self.rounds + (self.round is None)
        is_out = number <= conduct.out_until or self.now < conduct.out_to
        return is_out and self.now - conduct.out_since < LONGEST_OUT_S

    def listeners(self) -> tuple[Listener, ...]:
        """Return the members that can be dialled, by id: all relays, and the others that came first."""
        relays = [member for member in self.listening.values() if member.role is Role.RELAY]
        others = [member for member in self.listening.values() if member.role is not Role.RELAY]
        others.sort(key=lambda p: (p.trains, p.joined_at, p.peer))
        by_id = sorted(relays + others[:MOST_LISTENERS], key=lambda p: p.peer)
        return tuple(Listener(p.peer, p.url, p.fingerprint, p.reduces, p.keeps_log) for p in by_id)

    def everyone(self) -> tuple[PeerId, ...]:
        return tuple(self.members)


LONGEST_OUT_S = 3600.0


def stated(recipe: Recipe) -> Chosen:
    """Return the choice that the recipe states: all contributors, its codecs."""
    return Chosen(codecs={}, codec_down=recipe.codec_down)
