"""A relay's state, changed only by `advance`. Reducing and keeping the log are two independent parts."""

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

NOBODY = AccumulatorId("0" * 32)  # a peer that only reduces accumulates nothing
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
    spans: dict[int, m.PlannedSpan]  # those to average here
    coverage: Coverage
    began_at: float
    clock: float  # time of the last event
    slept_s: float = 0.0  # seconds of this process's pauses: deadlines do not move in them (rule 22)
    arrived: dict[PeerId, Arrived] = field(default_factory=dict)  # by contributor
    held_s: dict[PeerId, float] = field(default_factory=dict)  # seconds in which a contributor was not read
    leaves: set[int] = field(default_factory=set)  # slots whose leaves have come
    refused: dict[int, Said] = field(default_factory=dict)  # by slot
    writing: set[int] = field(default_factory=set)  # spans
    done: dict[int, Said] = field(default_factory=dict)  # by span
    opened_at: dict[int, float] = field(default_factory=dict)  # slots that were asked for chunks and sent nothing yet
    awaited: dict[int, set[int]] = field(default_factory=dict)  # chunks by span that come from reducers without a log
    received: dict[int, Said] = field(default_factory=dict)  # such spans that are on the disk
    progress_at: float = NEVER

    @property
    def place(self) -> Place:
        """Fence, step and attempt number."""
        return self.plan.place


class Reducer(Struct):
    """The part that averages. `newest`: older plans are dropped (rule 2)."""

    phase: Phase = Phase.IDLE
    attempt: Attempt | None = None
    newest: Place = Place(0, 0, 0)
    outbox: tuple[int, int] | None = None  # fence and step whose averages are sent out


class Copy(Struct):
    """A span to fetch from another log. `asked`: peers asked in this try; `tries`: failed tries."""

    entry: SpanEntry
    asked: set[PeerId] = field(default_factory=set)
    asking: PeerId | None = None
    tries: int = 0
    at: float = NEVER  # not before


class Keeper(Struct):
    """The part that keeps the log. Indexes start at 1, and 0 means none."""

    index: int = 0  # on the disk
    appending: int = 0  # handed to the disk
    said: int = -1  # the index last reported to the coordinator
    gap_at: float = NEVER  # when a gap was last reported
    keep_after: int = 0  # the bytes up to here are deleted
    covered: int = 0  # a verified snapshot covers the log up to here: none of it is copied
    scanned: int | None = None  # the spans that the disk lacks are known up to here; None before the site said anything
    scanning: int = 0  # the first record of the page being checked; 0: none
    copies: dict[tuple[int, int], Copy] = field(default_factory=dict)  # by index and span


class RelayState(Struct, kw_only=True):
    """A run as one relay sees it. Time is the shell's `now` (monotonic seconds)."""

    run: RunId
    me: PeerId
    url: str = ""
    fingerprint: str = ""
    reserve_percent: int = 0  # of its uplink: the household's reserve
    reducer: Reducer | None
    keeper: Keeper | None
    spare: Keeper | None = None  # its state of the log while the site does not ask it to keep it
    gets_all: bool = False  # part of a trainer, which gets all averages: it keeps the log when asked to
    fence: int = 0  # the highest heard of
    joined: bool = False  # the site knows this peer on the open control link
    finished: bool = False
    said_at: float = NEVER
    reached: tuple[PeerId, ...] = ()  # listeners to which there is a data link
    reaches_at: float = NEVER
    links: dict[PeerId, Role] = field(default_factory=dict)
    listeners: tuple[m.Listener, ...] = ()


def place_of(message: m.Attempted | Frame) -> Place:
    return Place(message.fence, message.step, message.attempt)


def is_now(attempt: Attempt, message: m.Attempted | Frame) -> bool:
    """Return True if the message belongs to the open attempt (rule 2)."""
    return message.run == attempt.plan.run and place_of(message) == attempt.place


def named(attempt: Attempt) -> dict[str, Any]:
    """Return the fields that name an attempt in messages."""
    plan = attempt.plan.plan
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


def awaited(state: RelayState, plan: OpenPlan) -> dict[int, set[int]]:
    """Return the chunks by span that a keeper gets from others: from reducers without a log, or from all."""
    if state.keeper is None:
        return {}
    keepers = {listener.peer for listener in state.listeners if listener.keeps_log and not state.gets_all} | {state.me}
    spans = (span for span in plan.plan.spans if not span.root and span.reducer not in keepers)
    return {span.span: set(range(span.first, span.stop)) for span in spans}
