"""What a coordinator knows of its run. Owned and changed by `advance` alone."""

from enum import StrEnum

from msgspec import Struct, field

from peer_agent.protocol.coordinator.events import Goal
from peer_agent.protocol.coordinator.leases import LeaseBook
from peer_agent.protocol.credentials import Role, Signed
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.messages import Offer, Plan, RelayAddress, Shard, Slot, Snapshot, SpanDone
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.records import Record, Unit

DIVERGED = 4  # units not finite at one step, from every trainer
NO_ACCUMULATOR = AccumulatorId("")  # revoked, until the peer says hello with another


class Phase(StrEnum):
    """Where the run is in its round."""

    ACCUMULATE = "accumulate"
    OFFER = "offer"
    REDUCE = "reduce"
    COMMIT = "commit"


class Member(Struct):
    """A peer in the run, as far as the coordinator knows. `step` is that of its replica, -1 while it has none."""

    peer: PeerId
    person: str
    machine: str
    role: Role
    accumulator: AccumulatorId
    heard_at: float
    silent: bool = False  # it let a round wait for nothing and was not heard since; no round waits for it
    step: int = -1
    reconciled: bool = False  # what it holds has been judged; until then it is neither leased to nor waited for
    done: dict[Unit, int] = field(default_factory=dict)  # unit -> base step
    samples_per_s: float = 0.0
    quota: int = 0
    carried: int = 0  # most tokens that may still lie in chunks left out of earlier updates
    samples_per_token: float = 0.0
    url: str = ""
    fingerprint: str = ""
    upload_bps: int = 0
    download_bps: int = 0
    log_index: int = -1

    @property
    def done_samples(self) -> int:
        """Samples in its accumulator."""
        return sum(unit.samples for unit in self.done)


class Departed(Struct):
    """An accumulator whose holder's session ended, and the round count then (leases last some rounds longer)."""

    accumulator: AccumulatorId
    peer: PeerId
    rounds: int
    carried: int = 0
    samples_per_token: float = 0.0


class Round(Struct):
    """One attempt to make an update, from the cut on."""

    number: int
    attempt: int
    persons: dict[PeerId, tuple[str, str]]  # person and machine of those asked
    expected: set[PeerId]
    deadline: float
    offers: dict[PeerId, Offer] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    dropped: set[int] = field(default_factory=set)
    plan: Plan | None = None
    held: dict[int, SpanDone] = field(default_factory=dict)
    progress: dict[tuple[PeerId, int], tuple[int, float]] = field(default_factory=dict)
    attempts: int = 1
    record: Record | None = None
    ended: dict[AccumulatorId, set[Unit]] = field(default_factory=dict)  # leases that end with the round

    @property
    def is_planned(self) -> bool:
        """Whether the current attempt has its plan; not while there is no relay to reduce it."""
        return self.plan is not None and self.plan.attempt == self.attempt


class RunState(Struct, kw_only=True):
    """A run between two events. Time is whatever the host passes as `now` (monotonic seconds)."""

    run: RunId
    slug: str
    title: str
    fence: int
    recipe: Recipe
    recipe_bytes: bytes
    elements: int
    shards: tuple[Shard, ...]
    site_key: bytes
    snapshot: Snapshot
    leases: LeaseBook
    index: int = 0
    step: int = 0
    digest: str
    goal: Goal = "running"
    ending_since: float = 0.0  # when the organizer ended the run early
    started: bool = False
    finished: bool = False
    phase: Phase = Phase.ACCUMULATE
    round: Round | None = None
    rounds: int = 0  # numbers given to rounds
    attempt: int = 0  # numbers given to attempts since the last commit
    void_rounds: int = 0
    late_rounds: int = 0  # void one after another because offers came too late
    accumulating_since: float = 0.0
    members: dict[PeerId, Member] = field(default_factory=dict)  # in the order of their ids
    departed: dict[AccumulatorId, Departed] = field(default_factory=dict)
    reported: dict[int, dict[PeerId, str]] = field(default_factory=dict)  # step -> peer -> state digest
    agreed: dict[int, str] = field(default_factory=dict)
    sealed: Signed | None = None  # the last committed record
    snapshot_due: bool = False
    snapshot_from: tuple[PeerId, int, float] | None = None  # peer, step, when asked
    replay_at: float | None = None  # nobody can hand in the last state: when the site is asked to make it
    reserving: bool = False
    orphans_until: int = 0  # commits after which unclaimed units come back
    non_finite: dict[PeerId, int] = field(default_factory=dict)  # units returned as such since the last finite one
    waiting: str = ""
    now: float = 0.0

    @property
    def grid(self) -> Grid:
        """The chunk grid of the parameter vector."""
        return grid_of(self.elements)

    @property
    def done(self) -> bool:
        """Whether the last step is committed. Ended early, that is the one before or the one of the open round."""
        return self.step >= self.recipe.target_steps or (self.goal == "finishing" and self.round is None)

    def trainers(self) -> list[Member]:
        """Members that compute gradients, by id."""
        return [p for p in self.members.values() if p.role is Role.TRAINER]

    def ready(self) -> list[Member]:
        """Trainers whose replica is at the head and whose leases are known."""
        return [member for member in self.trainers() if member.step == self.step and member.reconciled]

    def awake(self) -> list[Member]:
        """Trainers at the head that a round may count on."""
        return [member for member in self.ready() if not member.silent]

    @property
    def has_diverged(self) -> bool:
        """Whether no machine gets finite gradients out of the model any more: more samples would only be wasted."""
        ready = self.ready()
        return bool(ready) and all(self.non_finite.get(member.peer, 0) >= DIVERGED for member in ready)

    def relays(self) -> list[Member]:
        """Members that may reduce: listening relays, by id."""
        return [p for p in self.members.values() if p.role is Role.RELAY and p.url]

    def reducers(self) -> list[Member]:
        """Relays that are planned a part: not those that let a round down, unless there is no other."""
        relays = self.relays()
        return [relay for relay in relays if not relay.silent] or relays

    def addresses(self) -> tuple[RelayAddress, ...]:
        """Where the relays listen."""
        return tuple(RelayAddress(p.peer, p.url, p.fingerprint) for p in self.relays())
