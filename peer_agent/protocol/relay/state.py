"""What a relay knows of a run. Owned and changed by `advance` alone.

Reduces, and keeps the log: two parts, each of which may be there without the other.
"""

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

NOBODY = AccumulatorId("0" * 32)  # whoever only reduces accumulates nothing
NEVER = float("-inf")


class Phase(StrEnum):
    """How far a reducer is in the open attempt."""

    IDLE = "idle"
    REDUCE = "reduce"
    HOLD = "hold"


class Said(Struct):
    """A message that is said again until the attempt is over, and when it was said last."""

    message: m.SpanDone | m.SlotRefused | m.Have
    at: float


class Attempt(Struct):
    """The open attempt of a reducer."""

    plan: OpenPlan
    spans: dict[int, m.PlannedSpan]  # those to be averaged here
    coverage: Coverage
    began_at: float
    clock: float  # at the last event
    slept_s: float = 0.0  # of this process since then: no deadline moves in it (rule 22)
    arrived: dict[PeerId, Arrived] = field(default_factory=dict)  # by contributor
    held_s: dict[PeerId, float] = field(default_factory=dict)  # in which nothing was read of it, as it was ahead
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
        """Run, step, fence and attempt of this attempt."""
        return self.plan.place


class Reducer(Struct):
    """The part that averages. `newest`: anything below is dropped (rule 2)."""

    phase: Phase = Phase.IDLE
    attempt: Attempt | None = None
    newest: Place = Place(0, 0, 0)
    outbox: tuple[int, int] | None = None  # fence and step whose averages are given out


class Copy(Struct):
    """A span that is to be fetched from another's log. `asked` in this try; `tries` that were in vain."""

    entry: SpanEntry
    asked: set[PeerId] = field(default_factory=set)
    asking: PeerId | None = None
    tries: int = 0
    at: float = NEVER  # not before


class Keeper(Struct):
    """The part that keeps the log. Indexes start at 1, and 0 means none."""

    index: int = 0  # on the disk
    appending: int = 0  # handed to the disk
    said: int = -1  # the index that the coordinator was told
    gap_at: float = NEVER  # when a gap was told of
    keep_after: int = 0  # the bytes up to here go
    covered: int = 0  # a verified snapshot covers the log up to here: nothing of that is copied
    scanned: int | None = None  # which spans the disk lacks is known up to here; None before the site said anything
    scanning: int = 0  # the first record of the page that is looked at; 0: none is
    copies: dict[tuple[int, int], Copy] = field(default_factory=dict)  # by index and span


class RelayState(Struct, kw_only=True):
    """A run as one relay sees it. Time is whatever the shell passes as `now` (monotonic seconds)."""

    run: RunId
    me: PeerId
    url: str = ""
    fingerprint: str = ""
    reserve_percent: int = 0  # of its uplink, that its household keeps
    reducer: Reducer | None
    keeper: Keeper | None
    spare: Keeper | None = None  # what it has of the log while the site does not ask it to keep that
    gets_all: bool = False  # it is part of a trainer, to which all averages come: it keeps the log where it is asked to
    fence: int = 0  # the highest that was heard of
    joined: bool = False  # the site was told who this is, on the control link that is open
    finished: bool = False
    said_at: float = NEVER
    reached: tuple[PeerId, ...] = ()  # listeners to which there is a data link
    reaches_at: float = NEVER
    links: dict[PeerId, Role] = field(default_factory=dict)
    listeners: tuple[m.Listener, ...] = ()


def place_of(message: m.Attempted | Frame) -> Place:
    """The attempt that it says it belongs to."""
    return Place(message.fence, message.step, message.attempt)


def is_now(attempt: Attempt, message: m.Attempted | Frame) -> bool:
    """Whether it belongs to the open attempt (rule 2)."""
    return message.run == attempt.plan.run and place_of(message) == attempt.place


def named(attempt: Attempt) -> dict[str, Any]:
    """The fields by which messages name an attempt."""
    plan = attempt.plan.plan
    return {"run": plan.run, "step": plan.step, "fence": plan.fence, "attempt": plan.attempt}


def awaited(state: RelayState, plan: OpenPlan) -> dict[int, set[int]]:
    """Chunks by span that come to a keeper of the log: of reducers that keep none themselves, or of all others."""
    if state.keeper is None:
        return {}
    keepers = {listener.peer for listener in state.listeners if listener.keeps_log and not state.gets_all} | {state.me}
    spans = (span for span in plan.plan.spans if not span.root and span.reducer not in keepers)
    return {span.span: set(range(span.first, span.stop)) for span in spans}
