"""A run of four chunks in two spans, with three contributors, as seen by one relay."""

from typing import Any

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import sealed
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, Scalars, SpanEntry, open_head, seal, whole
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.advance import advance
from peer_agent.protocol.relay.opened import OpenCommit, OpenPlan, Place
from peer_agent.protocol.relay.state import Attempt, Keeper, Reducer, RelayState
from peer_agent.protocol.wire import Frame, Kind
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC

RUN = RunId("ab" * 16)
ME, OTHER, THIRD = PeerId("e" * 32), PeerId("f" * 32), PeerId("d" * 32)
SENDERS = tuple(PeerId(f"{number:032x}") for number in range(3))
TOKENS = (500, 300, 200)
CHUNK = 16  # elements, in fp32
SPANS = ((0, 2), (2, 4))
SNAPSHOT = m.Snapshot(index=0, step=0, digest="", state_digest="", file="", size=0)
HERE = m.Listener(peer=ME, url="ws://me/")
THERE = m.Listener(peer=OTHER, url="ws://other/")
ANYWHERE = m.Listener(peer=THIRD, url="ws://third/")


def plan_of(step: int = 7, fence: int = 3, attempt: int = 1, reducer: PeerId = ME, **changes: Any) -> OpenPlan:
    slots = tuple(
        m.Slot(peer=peer, weights=(m.Weight(0, 4, tokens),), root=bytes(32), norm=1.0, codec="fp32")
        for peer, tokens in zip(SENDERS, TOKENS, strict=True)
    )
    spans = tuple(
        m.PlannedSpan(span=number, first=first, stop=stop, reducer=reducer, attempt=attempt)
        for number, (first, stop) in enumerate(SPANS)
    )
    facts: dict[str, Any] = {
        "run": RUN,
        "step": step,
        "fence": fence,
        "attempt": attempt,
        "round": 1,
        "elements": 4 * CHUNK,
        "chunk_elements": CHUNK,
        "slots": slots,
        "spans": spans,
        "codec_down": "fp32",
        "duration_s": 0,
    }
    plan = sealed.plan_of(**(facts | changes))
    return OpenPlan(plan, plan.slots)


def planned(plan: m.Plan) -> m.Planned:
    return sealed.planned_whole(sealed.seal_plan(SITE_KEY, plan))


def entry_of(span: int, reducer: PeerId = OTHER) -> SpanEntry:
    first, stop = SPANS[span]
    return SpanEntry(span=span, first=first, stop=stop, attempt=1, reducer=reducer, root="00" * 32, sum_squares=0.0)


def commit_of(index: int, step: int | None = None, fence: int = 3) -> OpenCommit:
    record = whole(
        run=RUN,
        index=index,
        step=index if step is None else step,
        fence=fence,
        attempt=1,
        round=1,
        previous=GENESIS,
        elements=4 * CHUNK,
        chunk_elements=CHUNK,
        codec="fp32",
        spans=(entry_of(0), entry_of(1)),
        scalars=Scalars(learning_rate=0.1, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=1.0),
        contributions=(),
        loss=1.0,
        tokens=1,
        samples=1,
        exact=True,
    )
    entry = seal(SITE_KEY, record)
    return OpenCommit(fence, open_head(entry.head, SITE_PUBLIC), entry)


def greeting(fence: int = 3, step: int = 7, **changes: Any) -> m.Greeting:
    usual: dict[str, Any] = {
        "run": RUN,
        "slug": "",
        "title": "",
        "fence": fence,
        "recipe": b"",
        "elements": 4 * CHUNK,
        "shards": (),
        "snapshot": SNAPSHOT,
        "index": step,
        "step": step,
        "digest": "0" * 64,
        "listeners": (HERE, THERE),
        "site_key": bytes(32),
        "reconciled": True,
    }
    return m.Greeting(**(usual | changes))


def named(place: Place) -> dict[str, Any]:
    return {"run": RUN, "step": place.step, "fence": place.fence, "attempt": place.attempt}


def frame(plan: OpenPlan, slot: int, chunk: int, **changes: Any) -> Frame:
    place, span = plan.place, next(n for n, (first, stop) in enumerate(SPANS) if first <= chunk < stop)
    payload = bytes(4 * CHUNK)
    whole = Frame(Kind.GRADIENT, RUN, place.step, place.fence, place.attempt, span, chunk, slot, payload)
    return replace(whole, **changes)


def average(plan: OpenPlan, chunk: int) -> Frame:
    return frame(plan, 0, chunk, kind=Kind.AVERAGE)


class Stage:
    """A relay's core, whose actions all succeed at once, on a clock that the test advances."""

    def __init__(self, *, reduces: bool = True, keeps: bool = True, index: int = 0) -> None:
        self.now = 100.0
        self.state = RelayState(
            run=RUN,
            me=ME,
            reducer=Reducer() if reduces else None,
            keeper=Keeper(index=index, appending=index) if keeps else None,
        )

    @property
    def attempt(self) -> Attempt | None:
        assert self.state.reducer is not None
        return self.state.reducer.attempt

    @property
    def keeper(self) -> Keeper:
        assert self.state.keeper is not None
        return self.state.keeper

    def handle(self, event: e.Event) -> list[e.Action]:
        """Return the actions for an event without carrying them out."""
        return advance(self.state, event, self.now)

    def hear(self, message: Any) -> list[e.Action]:
        return self.handle(e.Heard(message))

    def tick(self, later_s: float = 0.0) -> list[e.Action]:
        self.now += later_s
        return self.handle(e.Ticked())

    def join(self, **changes: Any) -> "Stage":
        self.hear(m.Rehello(run=RUN, fence=3))
        self.hear(greeting(**changes))
        return self

    def add(self, plan: OpenPlan, slot: int, *chunks: int) -> list[e.Action]:
        return [a for chunk in chunks for a in self.handle(e.ChunkAdded(plan.place, slot, chunk))]

    def links(self) -> "Stage":
        for peer in SENDERS:
            self.handle(e.Linked(peer, Role.TRAINER))
        return self


def said(actions: list[e.Action]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, e.Say)]


def told(actions: list[e.Action]) -> list[tuple[PeerId, Any]]:
    return [(action.peer, action.message) for action in actions if isinstance(action, e.Tell)]
