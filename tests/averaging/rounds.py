"""A small round: contributors with uneven weights, a plan over one or more relays, frames, and the log record."""

from collections.abc import Iterator, Sequence

import numpy as np

from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.contributor import Accumulator, Sending
from peer_agent.averaging.reducer import ClosedSpan
from peer_agent.protocol import sealed
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import GENESIS, Entry, Record, Scalars, SpanEntry, seal, whole
from peer_agent.protocol.messages import Plan, PlannedSpan, Slot
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.trainer.tokens import added, cleared, nothing
from peer_agent.protocol.wire import Frame, Kind
from tests.averaging.driver import Driver, Result, closed_by
from tests.protocol.identities import SITE_KEY as SITE

RUN = RunId("ab" * 16)
RELAY, OTHER_RELAY = PeerId("e" * 32), PeerId("f" * 32)
GRID = Grid(5000, 1024)  # five chunks; the last one is short
SCALARS = Scalars(learning_rate=0.1, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=1.0)


def gradient(seed: int, grid: Grid = GRID, scale: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(grid.elements) * scale).astype(np.float32)


class Holder:
    """An accumulator that counts its own tokens. In production the trainer's state machine counts them."""

    def __init__(self, grid: Grid = GRID) -> None:
        self.floats, self.held = Accumulator(grid), nothing(grid.chunks)

    def add(self, gradient_sum: Floats, tokens: int) -> None:
        self.floats.add(gradient_sum)
        self.held = added(self.held, tokens)

    def offer(self, codec: Codec) -> Sending:
        return self.floats.offer(codec, self.held)

    def remove_averaged(self, included: Sequence[tuple[int, int]]) -> None:
        self.floats.remove_averaged(included)
        self.held = cleared(self.held, included)


def contributor(seed: int, tokens: int, grid: Grid = GRID) -> Holder:
    holder = Holder(grid)
    holder.add(gradient(seed, grid) * np.float32(tokens), tokens)
    return holder


def plan_of(
    sendings: Sequence[Sending],
    *,
    grid: Grid = GRID,
    codec_down: Codec = "fp32",
    cuts: Sequence[int] = (0, 2, 5),
    reducers: Sequence[PeerId] = (RELAY, RELAY),
    scales: Sequence[float] = (),
    attempt: int = 1,
) -> Plan:
    """Build a plan with one span between each pair of adjacent `cuts`, and one reducer per span."""
    slots = tuple(
        Slot(peer=PeerId(f"{i:032x}"), weights=s.weights, root=s.root, norm=s.norm, codec=s.codec, scale=scale)
        for i, (s, scale) in enumerate(zip(sendings, scales or [1.0] * len(sendings), strict=True))
    )
    spans = tuple(
        PlannedSpan(span=i, first=first, stop=stop, reducer=reducer, attempt=attempt)
        for i, (first, stop, reducer) in enumerate(zip(cuts, cuts[1:], reducers, strict=False))
    )
    return sealed.plan_of(
        run=RUN,
        step=7,
        fence=3,
        attempt=attempt,
        round=9,
        elements=grid.elements,
        chunk_elements=grid.chunk_elements,
        slots=slots,
        spans=spans,
        codec_down=codec_down,
        duration_s=0,
    )


def frame(  # noqa: PLR0917 a place in a frame is named in this order
    plan: Plan, span: int, chunk: int, slot: int, payload: bytes | memoryview, kind: Kind = Kind.GRADIENT
) -> Frame:
    return Frame(kind, plan.run, plan.step, plan.fence, plan.attempt, span, chunk, slot, payload)


def frames_of(plan: Plan, slot: int, sending: Sending) -> Iterator[Frame]:
    """Yield the frames that a contributor sends: one for each chunk in which it has weight."""
    for span in plan.spans:
        for chunk in range(span.first, span.stop):
            if any(w.first <= chunk < w.stop and w.tokens for w in sending.weights):
                yield frame(plan, span.span, chunk, slot, sending.payloads[chunk])


def reduction_of(plan: Plan, sendings: Sequence[Sending], me: PeerId = RELAY) -> Driver:
    driver = Driver(plan, me)
    for slot, sending in enumerate(sendings):
        assert not driver.leaves(slot, pack_leaves(sending.leaves))
    return driver


def averaged(plan: Plan, sendings: Sequence[Sending]) -> tuple[list[ClosedSpan], dict[int, bytes]]:
    """Run a whole attempt on all its relays. Return the closed spans and the average of each chunk."""
    frames = [f for slot, sending in enumerate(sendings) for f in frames_of(plan, slot, sending)]
    closed: list[Result] = []
    for relay in sorted({span.reducer for span in plan.spans}):
        closed += closed_by(reduction_of(plan, sendings, relay), frames)
    spans = sorted((c for c in closed if isinstance(c, ClosedSpan)), key=lambda s: s.span)
    return spans, {c[0]: bytes(c[1]) for c in closed if not isinstance(c, ClosedSpan)}


def record_of(plan: Plan, spans: Sequence[ClosedSpan], *, index: int = 1, previous: str = GENESIS) -> Record:
    entries = tuple(
        SpanEntry(
            span=closed.span,
            first=closed.first,
            stop=closed.stop,
            attempt=plan.spans[closed.span].attempt,
            reducer=plan.spans[closed.span].reducer,
            root=closed.root.hex(),
            sum_squares=closed.sum_squares,
        )
        for closed in spans
    )
    return whole(
        run=plan.run,
        index=index,
        step=plan.step + 1,
        fence=plan.fence,
        attempt=plan.attempt,
        round=plan.round,
        previous=previous,
        elements=plan.elements,
        chunk_elements=plan.chunk_elements,
        codec=plan.codec_down,
        spans=entries,
        scalars=SCALARS,
        contributions=(),
        loss=2.5,
        tokens=1,
        samples=1,
        exact=True,
    )


def entry_of(record: Record) -> Entry:
    return seal(SITE, record)
