"""The coordinator's state. It changes only while `advance` processes an event; `state.now` is the time."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct, field

from peer_agent.protocol.bandwidth.links import Links
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.events import Goal, Sketched
from peer_agent.protocol.coordinator.leases import LeaseBook
from peer_agent.protocol.coordinator.reliability import Reliability
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import ChunkRange, Entry, Record, Unit
from peer_agent.protocol.messages import Audited, Listener, Offer, Plan, Shard, Slot, Snapshot, SpanDone
from peer_agent.protocol.plan import Limit, Outline
from peer_agent.protocol.recipe import AveragingRule, Codec, Recipe
from peer_agent.protocol.timing import ROUNDS_KEPT

# A trainer that returns this many non-finite units at one step gets no more in this step. If all do, training diverged.
DIVERGED = 4
NAMED = 3  # maximum number of machines named in a text
NO_ACCUMULATOR = AccumulatorId("")  # the accumulator was revoked, and the peer has not named another
KEEPING_ROLES = frozenset({Role.RELAY})  # roles trusted by the coordinator when they claim that bytes are on disk
STAND_INS = 2  # how many trainers are trusted like KEEPING_ROLES if no relay or auxiliary is present
LOSSES_KEPT = 55
SKETCHED_KEPT = 16
RECORDS_WALKED = 16  # latest records read to find what an accumulator may still carry
NORMS_KEPT = 10  # latest updates whose typical norm is remembered
TIMES_KEPT = 4096  # most delays of offers and replicas remembered
MOST_LISTENERS = 64  # maximum number of listeners besides relays, because every peer keeps a link to each


class Phase(StrEnum):
    ACCUMULATE = "accumulate"
    OFFER = "offer"
    REDUCE = "reduce"
    COMMIT = "commit"


class Member(Struct):
    """A peer in the run, as known to the coordinator. `step`: the step of the peer's replica, or -1 without one."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    accumulator: AccumulatorId
    heard_at: float
    joined_at: float = 0.0
    step: int = -1
    reconciled: bool = False  # its leases have been checked; until then, it gets none and rounds do not wait for it
    done: dict[Unit, int] = field(default_factory=dict)  # unit -> base step
    done_samples: int = 0
    quota: int = 0
    share: int = 0  # samples of the batch that the member should compute
    carried: int = 0  # most tokens in any chunk left out by earlier updates
    samples_per_token: float = 0.0
    url: str = ""
    fingerprint: str = ""
    reduces: bool = False
    may_keep: bool = False
    reaches: frozenset[PeerId] = frozenset()  # listeners that the member claims to have links to
    measures: bool = False  # the member has reported which listeners it reaches
    reserve: float = 0.0  # fraction of the uplink kept by the household, as the member claims
    uplink_told: float = 0.0  # the last Uplink limit sent, in bytes per second; 0: no limit
    told_slow: bool = False  # this member has been told that it is too slow to follow
    stands_in: bool = False  # no relay keeps the log, so this member's claims are trusted
    log_index: int = -1
    resent_to: int = -1  # index of the last record sent to the member
    resent_at: float = 0.0  # since when the coordinator has been awaiting an acknowledgement
    granted_at: float = 0.0  # when the member last received units; `granted`: those units
    granted: tuple[Unit, ...] = ()
    short_since: float | None = None  # since when it has reported fewer leased units than the lease book
    hello_asked_at: float | None = None
    load_asked_at: float = 0.0  # when it was last asked for a hello because it receives no missed commits
    repeated: tuple[float, int, int, int] = (0.0, 0, 0, 0)  # time, step, attempt, number of repetitions
    reliability: Reliability = field(default_factory=Reliability)
    counted: tuple[bool, bool, int] = (False, False, 0)  # its part in the run's totals: ready, awake, samples
    trains: bool = False  # its role is TRAINER

    def __post_init__(self) -> None:
        self.trains = self.role is Role.TRAINER

    @property
    def takes_all(self) -> bool:
        """True if the coordinator sends this member whole log entries with all contributions."""
        return not self.trains or self.stands_in

    @property
    def keeps_log(self) -> bool:
        """True if a commit may rely on this member's claim that bytes are on its disk."""
        return self.may_keep and (self.role in KEEPING_ROLES or self.stands_in)

    @property
    def is_reachable(self) -> bool:
        return bool(self.url)

    @property
    def samples_per_s(self) -> float:
        """Samples per second, measured from the member's deliveries, or 0 until the first one."""
        return self.reliability.rate

    @property
    def name(self) -> str:
        """The person's and the machine's names, as displayed to people."""
        return f"{self.person} ({self.machine})"


class Departed(Struct):
    """An accumulator whose holder has disconnected. Its leases last a few more rounds, counted from round `rounds`."""

    accumulator: AccumulatorId
    peer: PeerId
    rounds: int
    carried: int = 0
    samples_per_token: float = 0.0


class Seen(Struct):
    """The number of a slot's chunks that a reducer has in this attempt, and when that number last changed."""

    chunks: int
    at: float


class Reduction(Struct):
    """A reducer's reports on this attempt: when it last reported, and how far each slot is."""

    reported_at: float
    slots: dict[int, Seen] = field(default_factory=dict)


class Round(Struct):
    """A round, from the cut to the commit or void. It tries to make one update, if necessary in several attempts."""

    number: int
    attempt: int
    persons: dict[PeerId, tuple[str, str]]  # person and machine of each peer asked for an offer
    held: dict[PeerId, int]  # samples reported by each of these peers
    waiting: set[PeerId]  # peers that the round is waiting for an answer from
    cut_at: float
    deadline: float
    codec_down: Codec
    codecs: dict[PeerId, Codec]  # codec of each peer asked for an offer
    left_out: dict[PeerId, str] = field(default_factory=dict)  # peers left out of this round, and why
    repeat_at: float = 0.0  # when to repeat the cut for peers that have not answered
    offers: dict[PeerId, Offer] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    seed: int = 0  # of the sketches; 0: none are made
    secret: int = 0  # seed for the choice of the audited contributions
    rule: AveragingRule = "mean"  # how its gradients are averaged
    norm: float = 0.0  # largest possible norm of the average over all slots
    dropped: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)  # slots missing from closed chunks, except dropped ones
    behind_at: dict[int, set[PeerId]] = field(default_factory=dict)  # slot -> reducers that closed many chunks without
    plan: Plan | None = None
    planned_at: float = 0.0
    limits: tuple[Limit, ...] = ()  # the limits that determine how long the plan takes
    hoped: float = 1.0  # fraction of the plan's time that suffices if links are as fast as hoped
    moved_at: float = 0.0  # when a chunk or span of this attempt was last reported, or a slot dropped
    done: dict[int, SpanDone] = field(default_factory=dict)  # span -> its reducer's report
    kept: dict[int, set[PeerId]] = field(default_factory=dict)  # span -> log keepers that reported the same bytes
    gathered: dict[PeerId, bytes] = field(default_factory=dict)  # peers that reported all averages, and their root
    done_at: float | None = None  # when the last span was reported
    reductions: dict[PeerId, Reduction] = field(default_factory=dict)  # by reducer
    excluded: set[PeerId] = field(default_factory=set)  # reducers that were replaced in this round
    attempts: int = 1
    record: Record | None = None
    persist_at: float | None = None  # when to send the record to the database again
    persist_pause_s: float = 0.0
    ended: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)  # leases that will end with the round

    @property
    def is_planned(self) -> bool:
        """True if the current attempt has a plan. It has none while no member can reduce."""
        return self.plan is not None and self.plan.attempt == self.attempt

    def seen_at(self, reducer: PeerId) -> dict[int, Seen]:
        """Return what a reducer has reported on each slot."""
        return self.reductions[reducer].slots if reducer in self.reductions else {}

    def reported_at(self, reducer: PeerId) -> float:
        """Return when a reducer last reported on this attempt, or when the attempt was planned."""
        return self.reductions[reducer].reported_at if reducer in self.reductions else self.planned_at


class Audit(Struct):
    """A contribution that the machine `auditor` computes again. `name`: the audited person and machine, for people."""

    peer: PeerId  # the audited machine
    name: str
    person: str
    auditor: PeerId
    auditing: str  # the auditor's person
    round: int
    slot: int
    samples: int
    loss_sum: float  # as offered
    loss_tokens: int
    parts: tuple[ChunkRange, ...]  # compared chunks
    codec: Codec
    index: int = 0  # of the log entry; 0 until the update is committed
    sketch: bytes = b""  # the reducers' sketch of the whole gradient; empty until the update is committed
    answer: Audited | None = None


class Ballot(Struct):
    """Machines' reports of one value (a state's digest or a snapshot's hash), counted by person (rule 17)."""

    votes: dict[PeerId, tuple[str, str]] = field(default_factory=dict)  # machine -> person, value
    persons: dict[str, Counter[str]] = field(default_factory=dict)  # person -> value -> machines
    counts: Counter[str] = field(default_factory=Counter)  # value -> number of people whose machines all report it
    machines: Counter[str] = field(default_factory=Counter)  # value -> number of machines that report it
    abstaining: int = 0  # number of people whose machines disagree
    split_since: float | None = None  # since when there have been several values and no majority
    value: str = ""  # the decided value, or empty


class Late(Struct):
    """Each contributor's lateness in an attempt, as a fraction of the plan's time: the largest that any reducer saw."""

    place: tuple[int, int, int]  # fence, step, attempt
    by: dict[PeerId, float] = field(default_factory=dict)


class Timings(Struct):
    """How long peers took for what the coordinator waits for, in earlier rounds. Times are in seconds."""

    batches: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))
    offers: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))  # from the cut
    replicas: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))  # from the commit
    chunks: deque[Late] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))  # as fractions of the plan's time
    failures: Counter[Kind] = field(default_factory=Counter)  # void rounds since the last update, by what was missing


class Replicas(Struct):
    """The trainers that the next cut waits for, because they have not yet applied the last update (staleness 1)."""

    peers: set[PeerId] = field(default_factory=set)
    since: float = 0.0  # when the commit was made; 0 for a new host, which waits for these peers to return
    until: float = 0.0


class Override(Struct):
    """While it is on, quarantines do not count, because the batch would take too long without those machines."""

    is_on: bool = False
    failures: int = 0  # void rounds with an override since the last update
    not_before: float = 0.0


class Inclusion(Struct, frozen=True):
    """How much of an accumulator's gradient one update includes. `is_whole`: it is included in every chunk."""

    is_whole: bool
    weight: int  # offered loss tokens
    samples: int  # samples in settled units


class Keeper(Struct, frozen=True):
    """The trainer elected to upload the state after a log entry, and when the coordinator asked for the upload."""

    peer: PeerId
    index: int
    step: int
    asked_at: float


class Chosen(Struct, frozen=True, kw_only=True):
    """The choice of codecs and contributors for the next round, from the latest comparison (rules 14, 30)."""

    codecs: dict[PeerId, Codec]  # peers that are missing here use the recipe's codec
    codec_down: Codec
    left_out: dict[PeerId, str] = {}  # peers left out, and why
    cannot_follow: frozenset[PeerId] = frozenset()  # left-out peers that receive averages more slowly than steps happen
    step_s: float = 0.0  # seconds from one update to the next


class RunState(Struct, kw_only=True):
    """The state of a run between two events.

    Times are seconds on the host's monotonic clock, not counting the time for which the host was suspended.
    """

    run: RunId
    slug: str
    title: str
    fence: int
    recipe: Recipe
    recipe_bytes: bytes
    elements: int
    shards: tuple[Shard, ...]
    site_key: bytes
    snapshot: Snapshot  # the latest snapshot that new peers may load
    covered: int = 0  # index of the previous snapshot; peers loading it still need later averages
    verified: int = 0  # index of the latest snapshot that the site has replayed
    archived: int | None = None  # the site has archived averages up to this index; None: no archive
    has_gap: bool = False  # no relay has the next entry's averages
    leases: LeaseBook
    index: int = 0
    step: int = 0
    digest: str
    rolled_back: int = 0  # index of the last rollback; 0 means none
    rolling: Record | None = None  # a rollback's record, while the database writes it
    goal: Goal = "running"
    pause_reason: str = ""  # the reason for a pause that the organizer did not request
    trusted: frozenset[str] | None = None  # people with looser limits (rule 12); None: everyone, as in a closed run
    contributed: Counter[str] = field(default_factory=Counter)  # person -> number of updates with their work
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=NORMS_KEPT))  # typical norms of the last updates
    ending_since: float = 0.0  # when the organizer ended the run early
    started: bool = False
    finished: bool = False
    ahead: dict[PeerId, float] = field(default_factory=dict)  # peers ahead of the database -> how long to wait
    has_told_of_loss: bool = False  # the timeline says that steps were lost
    recover_until: float = 0.0  # until then, trainers that are ahead wait for a relay's records
    sealed: Entry | None = None  # the last committed record
    loss: float | None = None  # of the last update
    feedback_norm: float = 0.0  # largest possible norm of the reducers' error feedback from the last update
    # the round
    phase: Phase = Phase.ACCUMULATE
    round: Round | None = None
    rounds: int = 0  # number of the last round
    attempt: int = 0  # number of the last attempt since the last commit
    void_rounds: int = 0
    accumulating_since: float = 0.0
    batch_since: float = 0.0  # when the batch began: at the last commit, or at its round's cut with staleness 1
    timings: Timings = field(default_factory=Timings)
    replicas: Replicas = field(default_factory=Replicas)
    links: Links = field(default_factory=Links)
    outline: Outline | None = None  # the last plan, as shown on pages
    chosen: Chosen | None = None  # None if nothing has been compared yet
    # members
    members: dict[PeerId, Member] = field(default_factory=dict)
    listening: dict[PeerId, Member] = field(default_factory=dict)  # members that other peers can dial
    reached: set[PeerId] = field(default_factory=set)  # listeners, besides relays, that may reduce
    departed: dict[PeerId, Departed] = field(default_factory=dict)
    holders: dict[AccumulatorId, PeerId] = field(default_factory=dict)  # accumulators of members and departed peers
    reliabilities: dict[PeerId, Reliability] = field(default_factory=dict)  # of machines that are away
    ready_count: int = 0  # number of trainers that have applied all entries
    awake_count: int = 0  # number of trainers that a round can count on
    awake_samples: int = 0  # samples done by trainers that a round can count on
    quotas_raised: bool = False  # because the batch is taking too long
    override: Override = field(default_factory=Override)
    is_dirty: bool = False  # check all leases and shares at the next tick
    # audits
    audits: dict[int, Audit] = field(default_factory=dict)  # by number
    heeded: frozenset[int] = frozenset()  # the numbers of the site's findings that have had their consequences
    dismissed: Counter[str] = field(default_factory=Counter)  # false accusations by person, as others found
    alarmed_until: int = 0  # the last round in which a robust rule replaces the mean
    audits_drawn: int = 0  # number of the last audit
    halting_until: float = 0.0  # until then, the database may not know yet that the coordinator has paused the run
    lowest_loss: float = math.inf  # lowest median of as many losses as `losses` has
    sketched: deque[Sketched] = field(default_factory=lambda: deque(maxlen=SKETCHED_KEPT))  # of the latest updates
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LOSSES_KEPT))  # of the latest updates, in nats
    # votes
    recent: dict[str, int] = field(default_factory=dict)  # person -> index of the last entry with their work
    voters: int = 0  # number of people with recent work and a working machine, or of the jury
    jury: set[str] | None = None  # the audited people among them, if only these vote
    digests: dict[int, Ballot] = field(default_factory=dict)  # step -> votes
    split_since: float | None = None  # since when a step's digests have differed without a majority
    replay: tuple[int, int, float] | None = None  # index and step for the site to replay, and when it was asked to
    inclusions: deque[dict[AccumulatorId, Inclusion]] = field(default_factory=lambda: deque(maxlen=RECORDS_WALKED))
    # snapshots
    snapshot_due: bool = False
    keeper: Keeper | None = None
    hashes: tuple[int, int, Ballot] | None = None  # index, step, votes on that state's sha256 and size
    admitted: int = 0  # the latest index whose hash a majority has reported
    replay_at: float | None = None  # when to ask the site to rebuild the last state if no trainer can upload it
    # leases
    reserving: bool = False
    until_look: int = 0  # samples to lease before rechecking the marks, if the last check changed nothing
    orphans_until: int = 0  # step at which unclaimed units return to the pool
    non_finite: dict[PeerId, int] = field(default_factory=dict)  # non-finite units by peer since its last finite one
    returned: Counter[PeerId] = field(default_factory=Counter)  # non-finite units by peer since the last update
    # time and words
    waiting: str = ""
    now: float = 0.0
    clock: float | None = None  # the host's clock at the last event
    slept_s: float = 0.0  # seconds for which the host was suspended, excluded from deadlines
    look_at: float = 0.0  # when to do a tick's work again
    sweep_at: float = 0.0  # when to visit every member again
    moved_at: float = 0.0  # when a peer last delivered, offered, averaged or committed anything

    @property
    def grid(self) -> Grid:
        return grid_of(self.elements)

    @property
    def done(self) -> bool:
        """True if the last step is committed. A run that the organizer ended early is done once no round is open."""
        return self.step >= self.recipe.target_steps or (self.goal == "finishing" and self.round is None)

    @property
    def is_recovering(self) -> bool:
        """True if a relay may still hand in entries that the database lacks."""
        return any(until > self.now for until in self.ahead.values())

    def is_undone(self, index: int) -> bool:
        """Return True if a replica or log ending at `index` has not applied the last rollback."""
        return self.rolled_back > max(index, 0)

    def trainers(self) -> list[Member]:
        return [member for member in self.members.values() if member.trains]

    def ready(self) -> list[Member]:
        """Return the trainers that have applied all entries and whose leases have been checked."""
        return [member for member in self.members.values() if member.counted[0]]

    def awake(self) -> list[Member]:
        """Return the trainers that have applied all entries and that a round can count on."""
        return [member for member in self.members.values() if member.counted[1]]

    @property
    def has_diverged(self) -> bool:
        """True if no trainer produces finite gradients any more, so that further samples would be wasted."""
        if not self.ready_count or len(self.non_finite) < self.ready_count:
            return False
        return all(self.non_finite.get(member.peer, 0) >= DIVERGED for member in self.ready())

    @property
    def has_quorum(self) -> bool:
        """True if enough trainers are in sync to begin. After the first round, one trainer is enough."""
        return self.ready_count >= (1 if self.started else self.recipe.minimum_trainers)

    def reducers(self) -> list[Member]:
        """Return the members that may average parts of a plan, by id. Exclude quarantined members if others remain.

        While quarantines are overridden, exclude only members that kept a round from ending. Otherwise, after a round
        that all trainers missed, one auxiliary would have to average the whole vector.
        """
        able = sorted((p for p in self.listening.values() if self.may_reduce(p)), key=lambda p: p.peer)
        moving = [p for p in able if self.round is None or p.peer not in self.round.excluded] or able
        return [p for p in moving if self.may_be_given_a_part(p.reliability)] or moving

    def may_be_given_a_part(self, record: Reliability) -> bool:
        """Return True if no quarantine keeps the machine from averaging in the open or next round."""
        if not record.failed_at:
            return True
        is_out = record.may_not_reduce(self.rounds + (self.round is None), self.now)
        return not is_out and (self.override.is_on or not self.in_quarantine(record))

    def can_reduce(self) -> bool:
        return any(self.may_reduce(member) for member in self.listening.values())

    def may_reduce(self, member: Member) -> bool:
        """Return True if the member averages spans and the contributors can reach it."""
        return member.reduces and (member.role is Role.RELAY or member.peer in self.reached)

    def is_vouched_for(self, member: Member) -> bool:
        """Return True for the site's relays, and for machines of people for whom the organizer vouches."""
        return member.role is Role.RELAY or self.trusted is None or member.person in self.trusted

    def is_audited(self, member: Member) -> bool:
        """Return True if the organizer vouches for the member's person, or if its work has passed an audit."""
        return self.is_vouched_for(member) or member.reliability.audits_passed > 0

    def in_quarantine(self, record: Reliability) -> bool:
        """Return True if earlier failures put the machine in quarantine for the open or next round."""
        return bool(record.failed_at) and record.in_quarantine(self.rounds + (self.round is None), self.now)

    def listeners(self) -> tuple[Listener, ...]:
        """Return the members that peers can dial, sorted by id: all relays, and a limited number of other members."""
        relays = [member for member in self.listening.values() if member.role is Role.RELAY]
        others = [member for member in self.listening.values() if member.role is not Role.RELAY]
        others.sort(key=lambda p: (p.trains, p.joined_at, p.peer))
        by_id = sorted(relays + others[:MOST_LISTENERS], key=lambda p: p.peer)
        return tuple(Listener(p.peer, p.url, p.fingerprint, p.reduces, p.keeps_log) for p in by_id)

    def everyone(self) -> tuple[PeerId, ...]:
        return tuple(self.members)


def stated(recipe: Recipe) -> Chosen:
    """Return the choice that the recipe states: all contributors, with the recipe's codecs."""
    return Chosen(codecs={}, codec_down=recipe.codec_down)


def name_all(members: Iterable[Member]) -> str:
    """Name at most three machines, and count the others."""
    names = sorted(member.name for member in members)
    if not names:
        return "a machine that is gone"
    if len(names) > NAMED:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
