"""A reducer's arithmetic in one attempt: check chunks, aggregate them, and encode the averages."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from peer_agent.averaging.aggregates import AGGREGATES, Aggregate, Room
from peer_agent.averaging.codecs import Encoded, Floats, decode_into, decode_with_leaf, encode_with_leaves
from peer_agent.averaging.memory import SCRATCH, Payloads
from peer_agent.averaging.sketches import BUCKETS, Signs
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.merkle import LEAF, Leaf, root_of, span_leaf, unpack_leaves
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import PlannedSpan, Weight
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import OpenPlan, Place

FED_BACK: frozenset[Codec] = frozenset({"int8", "int4"})  # codecs with error feedback; the others lose almost nothing
Part = tuple[int, int, int]  # attempt, and a range of chunks [first, stop)


class Residuals:
    """Error feedback for averages: one update's encoding error is added to the averages of the next. At most two
    residuals, [n] float32, are stored per chunk. If another machine reduced a chunk, its encoding error is unknown
    here, so this reducer drops the chunk's residual.
    """

    def __init__(self) -> None:
        self._index = -1  # index of the last committed entry
        self._step = -1  # step whose averages get these residuals
        self._kept: dict[int, Floats] = {}
        self._round = (0, 0)  # fence and step of the open round
        self._open: dict[tuple[int, int], Floats] = {}  # by attempt and chunk

    def begin(self, place: Place) -> None:
        """Prepare for an attempt. Drop uncommitted residuals if the step or the host has changed."""
        if self._round != (place.fence, place.step):
            self._round = place.fence, place.step
            self._open = {}

    def add_to(self, step: int, chunk: int, average: Floats) -> None:
        """Add the previous update's residual to a chunk's average, if one is stored for this step."""
        if step == self._step and chunk in self._kept:
            np.add(average, self._kept[chunk], out=average)

    def keep(self, attempt: int, chunk: int, lost: Floats) -> None:
        """Store the encoding error of a chunk's average. It becomes a residual when the attempt is committed."""
        self._open[attempt, chunk] = lost

    def commit(self, index: int, fence: int, step: int, parts: Iterable[Part]) -> None:
        """Commit the residuals of the chunks in `parts`, which this machine averaged, and drop all others.

        `index` identifies the update, because steps repeat after a rollback. A repeated `index` changes nothing.
        """
        if index <= self._index:
            return
        is_ours = self._round == (fence, step - 1)
        chunks = [(attempt, chunk) for attempt, first, stop in parts for chunk in range(first, stop)]
        self._kept = {c: self._open[a, c] for a, c in chunks if (a, c) in self._open} if is_ours else {}
        self._index, self._step, self._open = index, step, {}

    def void(self) -> None:
        """Drop a void round's residuals, keeping those already committed."""
        self._open = {}


NO_SKETCH: Floats = np.zeros(0, np.float32)
NORM_TOLERANCE = 1e-9  # For square roots in float64. An honest contributor's norm differs by about 1e-15.
LARGEST_TERM = 2.0**111  # the sum of 2^16 such terms, one per slot, stays below float32's 2^128


class ClosedSpan(Struct, frozen=True):
    """A span whose chunks have all been averaged, in chunk order. `sum_squares` is taken over the decoded averages."""

    span: int
    first: int
    stop: int
    root: bytes
    sum_squares: float
    included: tuple[Included, ...]
    leaves: tuple[Leaf, ...]
    payloads: tuple[memoryview, ...]
    sketches: tuple[bytes, ...] = ()  # one per slot, or none if the plan has no seed


def received_span(plan: OpenPlan, span: PlannedSpan, payloads: Sequence[bytes]) -> ClosedSpan:
    """Return a span that another reducer averaged, with leaves and root computed from the received bytes."""
    codec, values = plan.plan.codec_down, np.empty(plan.grid.chunk_elements, np.float32)
    lengths = [plan.grid.length(chunk) for chunk in range(span.first, span.stop)]
    pairs = zip(payloads, lengths, strict=True)
    leaves = tuple(decode_with_leaf(codec, payload, values[:length]) for payload, length in pairs)
    views = tuple(memoryview(payload) for payload in payloads)
    return _closed(span, leaves, (), views)


def _closed(
    span: PlannedSpan,
    leaves: tuple[Leaf, ...],
    included: Iterable[Included],
    payloads: Iterable[memoryview],
    sketches: tuple[bytes, ...] = (),
) -> ClosedSpan:
    whole = span_leaf(leaves)
    place = span.span, span.first, span.stop
    return ClosedSpan(*place, whole.digest, whole.sum_squares, tuple(included), leaves, tuple(payloads), sketches)


class Reduction:
    """One attempt's open chunks, and its averages until `take_span` returns them. Not thread-safe."""

    def __init__(
        self,
        opened: OpenPlan,
        residuals: Residuals | None = None,
        aggregate: Callable[[Room], Aggregate] | None = None,
    ) -> None:
        """Start an attempt. `residuals` are the encoding errors of earlier updates on this machine.

        `aggregate` opens the aggregate of one chunk. None: by the plan's rule.
        """
        self.plan, self.grid = opened, opened.grid
        self._residuals = residuals or Residuals()
        self._residuals.begin(opened.place)
        self._committed: dict[int, bytes] = {}  # by slot: the contributor's leaves, packed
        self._aggregate = aggregate or AGGREGATES[opened.plan.rule]
        self._signs = Signs(opened.plan.seed, self.grid.chunk_elements) if opened.plan.seed else None
        self._sketches: dict[tuple[int, int], Floats] = {}  # by span and slot
        self._open: dict[int, Aggregate] = {}  # by chunk
        self._spare: list[Floats] = []  # memory of averages that have been encoded, for reuse
        self._spans = sorted(opened.plan.spans, key=lambda span: span.first)
        self._payloads: dict[int, Payloads] = {}  # by span: memory for its averages
        self._averages: dict[int, Encoded] = {}  # by chunk

    def leaves(self, slot: int, data: bytes) -> Fault | None:
        """Check and store a contributor's leaves, which commit it to its chunks before it sends them.

        Return a fault if the leaves are malformed (E206), differ from the plan (E211) or are not finite (E212).
        """
        try:
            leaves = unpack_leaves(data)
        except ValueError as error:
            return Fault.of("E206", reason=error)
        if len(leaves) != self.grid.chunks or root_of(leaves) != self.plan.slots[slot].root:
            return Fault.of("E211", chunk="list")
        for chunk, leaf in enumerate(leaves):
            if not math.isfinite(leaf.sum_squares):
                return Fault.of("E212", chunk=chunk)
        norm = math.sqrt(sum(leaf.sum_squares for leaf in leaves))
        if not math.isclose(norm, self.plan.slots[slot].norm, rel_tol=NORM_TOLERANCE):
            # With a falsely small norm, large values would escape rule 12's limit.
            return Fault.of("E211", chunk="list")
        self._committed[slot] = data
        return None

    def add(self, slot: int, chunk: int, payload: bytes | memoryview, *, again: bool = False) -> Fault | None:
        """Check a chunk and add it to its aggregate. If `again`, only check it.

        Return a fault, without changing the aggregate, if the chunk is faulty.
        """
        checked = self._checked(slot, chunk, payload)
        if isinstance(checked, Fault):
            return checked
        if not again:
            entry = self.plan.slots[slot]
            if chunk not in self._open:
                self._open[chunk] = self._aggregate(self._room)
            if self._signs is not None:  # before the aggregate, which may overwrite the values
                place = self._span_of(chunk).span, slot
                self._signs.add(chunk, checked, self._sketches.setdefault(place, np.zeros(BUCKETS, np.float32)))
            self._open[chunk].add(slot, checked, _tokens_of(entry.weights, chunk), entry.scale)
        return None

    def close(self, chunk: int, tokens: int) -> memoryview:
        """Return a chunk's encoded average. `tokens`: of the slots that the average must contain."""
        aggregate = self._open.pop(chunk)
        assert aggregate.tokens == tokens, "the average must contain exactly the slots that the record will name"
        average = aggregate.close()
        encoded = self._averages[chunk] = self._encoded(chunk, average)
        if average.size == self.grid.chunk_elements:
            self._spare.append(average)
        return encoded[0]

    def _encoded(self, chunk: int, average: Floats) -> Encoded:
        """Encode the average plus the chunk's residual, and store the new encoding error. Overwrites `average`."""
        codec, place = self.plan.plan.codec_down, self.plan.place
        self._residuals.add_to(place.step, chunk, average)
        lost = average.copy() if codec in FED_BACK else None
        room = self._payloads_of(chunk).rows(chunk, 1)
        (encoded,) = encode_with_leaves(codec, average.reshape(1, -1), room)
        if lost is not None:
            decode_into(codec, encoded[0], average)
            self._residuals.keep(place.attempt, chunk, np.subtract(lost, average, out=lost))
        return encoded

    def take_span(self, span: PlannedSpan, included: Iterable[Included]) -> ClosedSpan:
        """Return a span whose chunks are all closed, removing it from this reduction."""
        payloads, leaves = zip(*(self._averages.pop(chunk) for chunk in range(span.first, span.stop)), strict=True)
        del self._payloads[span.span]
        slots = range(len(self.plan.slots)) if self._signs is not None else ()
        sketches = [self._sketches.pop((span.span, slot), NO_SKETCH) for slot in slots]
        return _closed(
            span, tuple(leaves), included, payloads, tuple(each.astype("<f4").tobytes() for each in sketches)
        )

    def _span_of(self, chunk: int) -> PlannedSpan:
        return self._spans[bisect_right(self._spans, chunk, key=lambda span: span.first) - 1]

    def _payloads_of(self, chunk: int) -> Payloads:
        span = self._span_of(chunk)
        if span.span not in self._payloads:
            self._payloads[span.span] = Payloads(self.plan.plan.codec_down, self.grid, span.first, span.stop)
        return self._payloads[span.span]

    def _room(self, elements: int) -> Floats:
        if self._spare and elements == self.grid.chunk_elements:
            return self._spare.pop()
        return np.empty(elements, np.float32)

    def _checked(self, slot: int, chunk: int, payload: bytes | memoryview) -> Floats | Fault:
        """Return a chunk's values, or a fault if the chunk is faulty.

        The next call in this thread overwrites the values.
        """
        entry, length = self.plan.slots[slot], self.grid.length(chunk)
        if len(payload) != (expected := encoded_size(entry.codec, length)):
            return Fault.of("E207", size=len(payload), expected=expected)
        if slot not in self._committed:
            return Fault.of("E208", message="chunk before its leaves")
        values: Floats = SCRATCH.room("term", np.float32, length)
        leaf = decode_with_leaf(entry.codec, payload, values)
        factor = entry.scale * _tokens_of(entry.weights, chunk)
        committed = Leaf(*LEAF.unpack_from(self._committed[slot], chunk * LEAF.size))
        is_small = factor * math.sqrt(leaf.sum_squares) <= LARGEST_TERM  # False if the sum is nan
        if leaf.digest == committed.digest and not is_small:
            return Fault.of("E212", chunk=chunk)
        if leaf != committed:
            return Fault.of("E211", chunk=chunk)
        return values


def _tokens_of(weights: Sequence[Weight], chunk: int) -> int:
    place = bisect_right(weights, chunk, key=lambda weight: weight.first) - 1
    return weights[place].tokens if place >= 0 and chunk < weights[place].stop else 0
