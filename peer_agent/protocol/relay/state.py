"""A relay's state, which only `advance` changes. Reducing and keeping the log are two independent parts."""

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.counting import Arrived
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import SpanEntry
from peer_agent.protocol.relay.closing import Coverage
from peer_agent.protocol.relay.opened import OpenPlan, Place
from peer_agent.protocol.wire import Frame

NOBODY = AccumulatorId("0" * 32)  # the accumulator of a peer that only reduces and accumulates nothing
NEVER = float("-inf")


class Phase(StrEnum):
    IDLE = "idle"
    REDUCE = "reduce"
    HOLD = "hold"


class Said(Struct):
    """A message that is repeated until the attempt ends, and when it was last sent."""

    message: m.SpanDone | m.SlotRefused | m.Have
    at: float


class Attempt(Struct):
    plan: OpenPlan
    spans: dict[int, m.PlannedSpan]  # spans averaged by this reducer
    coverage: Coverage
    began_at: float
    clock: float  # when the last event came
    slept_s: float = 0.0  # seconds for which this process was suspended, excluded from deadlines (rule 22)
    arrived: dict[PeerId, Arrived] = field(default_factory=dict)  # by contributor
    held_s: dict[PeerId, float] = field(default_factory=dict)  # seconds for which reading was paused
    leaves: set[int] = field(default_factory=set)  # slots whose leaves have arrived
    refused: dict[int, Said] = field(default_factory=dict)  # by slot
    writing: set[int] = field(default_factory=set)  # spans
    done: dict[int, Said] = field(default_factory=dict)  # by span
    opened_at: dict[int, float] = field(default_factory=dict)  # slots asked for chunks that have yet to send any
    awaited: dict[int, set[int]] = field(default_factory=dict)  # by span: missing chunks from reducers without a log
    received: dict[int, Said] = field(default_factory=dict)  # by span: other reducers' spans on disk
    progress_at: float = NEVER
    behind: tuple[int, ...] = ()  # slots that missed more consecutive chunks of a span than a batch has

    @property
    def place(self) -> Place:
        return self.plan.place


class Reducer(Struct):
    """The part of a relay that averages. `newest`: the newest known attempt; older plans are dropped (rule 2)."""

    phase: Phase = Phase.IDLE
    attempt: Attempt | None = None
    newest: Place = Place(0, 0, 0)
    outbox: tuple[int, int] | None = None  # fence and step of the averages being sent


class Copy(Struct):
    """A span to fetch from another log. `asked`: the peers asked in this try; `tries`: how many tries failed."""

    entry: SpanEntry
    asked: set[PeerId] = field(default_factory=set)
    asking: PeerId | None = None
    tries: int = 0
    at: float = NEVER  # do not ask before then


class Keeper(Struct):
    """The part of a relay that keeps the log. Indexes start at 1, and 0 means none."""

    index: int = 0  # the last index on disk
    appending: int = 0  # the last index passed to the disk
    said: int = -1  # the index last reported to the coordinator
    gap_at: float = NEVER  # when a gap was last reported
    step_back: int = 0  # to find the site's branch, the log last reported an index this far before its own
    keep_after: int = 0  # averages of records up to this index may be deleted
    covered: int = 0  # a verified snapshot covers the log up to this index, so it needs no copies
    scanned: int | None = None  # records up to this index were checked for missing spans; None before the first message
    scanning: int = 0  # the first record of the page being checked; 0 means none
    copies: dict[tuple[int, int], Copy] = field(default_factory=dict)  # by index and span


class RelayState(Struct, kw_only=True):
    """A run as seen by one relay. Times are in monotonic seconds by the shell's clock."""

    run: RunId
    me: PeerId
    url: str = ""
    fingerprint: str = ""
    reserve_percent: int = 0  # percent of the uplink kept for the household
    reducer: Reducer | None
    keeper: Keeper | None
    spare: Keeper | None = None  # the log's state while the site does not want this peer to keep it
    gets_all: bool = False  # True within a trainer, which gets all averages and keeps the log on request
    fence: int = 0  # the highest known fence
    joined: bool = False  # the site has asked for a hello on the open control link
    finished: bool = False
    said_at: float = NEVER
    reached: tuple[PeerId, ...] = ()  # listeners that this peer has a data link to
    reaches_at: float = NEVER
    links: dict[PeerId, Role] = field(default_factory=dict)
    listeners: tuple[m.Listener, ...] = ()


def place_of(message: m.Attempted | Frame) -> Place:
    return Place(message.fence, message.step, message.attempt)


def is_now(attempt: Attempt, message: m.Attempted | Frame) -> bool:
    """Return True if the message belongs to the open attempt (rule 2)."""
    return message.run == attempt.plan.run and place_of(message) == attempt.place


def named(attempt: Attempt) -> dict[str, Any]:
    """Return the fields that identify an attempt in messages."""
    plan = attempt.plan.plan
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


def awaited(state: RelayState, plan: OpenPlan) -> dict[int, set[int]]:
    """Return, by span number, the chunks that a log keeper needs from other reducers.

    A relay needs chunks only from reducers that keep no log. A trainer that keeps the log gets all chunks.
    """
    if state.keeper is None:
        return {}
    keepers = {listener.peer for listener in state.listeners if listener.keeps_log and not state.gets_all} | {state.me}
    spans = (span for span in plan.plan.spans if not span.root and span.reducer not in keepers)
    return {span.span: set(range(span.first, span.stop)) for span in spans}
