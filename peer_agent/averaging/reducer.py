"""One relay's part of one attempt: frames in, averaged chunks out.

Not responsible for deadlines: a chunk closes when every planned slot has come or the coordinator has dropped
the missing ones (rule 7). Holds one float32 sum per open chunk, however many contributors there are.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from threading import Lock

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats, decode_with_leaf, encode, encoded_size
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.merkle import LEAF, Leaf, root_of, unpack_leaves
from peer_agent.protocol.messages import Plan, PlannedSpan, Slot
from peer_agent.protocol.records import Included
from peer_agent.protocol.wire import Frame, Kind

QUORUM_PERCENT = 70  # of a chunk's planned tokens; below it a chunk stays open and the attempt is void
NORM_TOLERANCE = 1e-9  # of float64 square roots; an honest norm differs by 1e-15
LARGEST_TERM = 2.0**111  # 2^16 slots of such terms stay below float32's 2^128


class ClosedChunk(Struct, frozen=True):
    """The average of a chunk, encoded for everybody."""

    span: int
    chunk: int
    payload: bytes


class ClosedSpan(Struct, frozen=True):
    """A span whose chunks are all closed. `sum_squares` is of the decoded averages."""

    span: int
    first: int
    stop: int
    root: bytes
    sum_squares: float
    included: tuple[Included, ...]
    leaves: tuple[Leaf, ...]


Closed = ClosedChunk | ClosedSpan


class Reduction:
    """Averages the spans that `plan` gives to `me`, without those kept from an earlier attempt.

    Who sent a frame or leaves is for the caller to check: a link speaks for its own slot only. Threads may call it;
    they take turns.
    """

    def __init__(self, plan: Plan, me: PeerId) -> None:
        self.plan = plan
        self._grid = Grid(plan.elements, plan.chunk_elements)
        self._spans = {span.span: span for span in plan.spans if span.reducer == me and not span.root}
        self._span_of = {c: span for span in self._spans.values() for c in range(span.first, span.stop)}
        self._planned = _planned_tokens(plan.slots, self._grid.chunks)
        self._received = np.zeros(self._planned.shape, np.bool_)
        self._dropped = np.zeros(len(plan.slots), np.bool_)
        self._committed: dict[int, bytes] = {}  # slot: its leaves, packed
        self._sums: dict[int, Floats] = {}  # chunk: sum of scale * tokens * values
        self._closed: dict[int, Leaf] = {}  # chunk: leaf of its average
        self._turn = Lock()

    def leaves(self, slot: int, data: bytes) -> Fault | None:
        """What a contributor commits to, before its first chunk. Said twice it changes nothing."""
        if not 0 <= slot < len(self.plan.slots):
            return Fault.of("E206", reason=f"the plan has no slot {slot}")
        try:
            leaves = unpack_leaves(data)
        except ValueError as error:
            return Fault.of("E206", reason=error)
        if len(leaves) != self._grid.chunks or root_of(leaves) != self.plan.slots[slot].root:
            return Fault.of("E211", chunk="list")
        for chunk, leaf in enumerate(leaves):
            if not math.isfinite(leaf.sum_squares):
                return Fault.of("E212", chunk=chunk)
        norm = math.sqrt(sum(leaf.sum_squares for leaf in leaves))
        if not math.isclose(norm, self.plan.slots[slot].norm, rel_tol=NORM_TOLERANCE):
            return Fault.of("E211", chunk="list")  # a small norm with large values would escape the bound of rule 12
        self._committed[slot] = data
        return None

    def add(self, frame: Frame) -> list[Closed] | Fault:
        """What this chunk completes. Frames that the plan does not ask for are ignored; so is a chunk sent again.

        A fault leaves the sum as it was: a slot that sent a damaged chunk may still send the right one.
        """
        if not self._is_planned(frame) or self._is_late(frame.slot, frame.chunk):
            return []
        term = self._checked(frame)
        if isinstance(term, Fault):
            return term
        with self._turn:
            if self._received[frame.slot, frame.chunk] or self._is_late(frame.slot, frame.chunk):
                return []
            self._sum(frame.slot, frame.chunk, term)
            return self._close(frame.chunk)

    def drop(self, slot: int) -> list[Closed]:
        """Do without a slot in every chunk that does not hold its bytes yet; what closes by that."""
        if not 0 <= slot < len(self.plan.slots):
            return []
        with self._turn:
            self._dropped[slot] = True
            waiting = sorted(self._span_of.keys() - self._closed.keys())
            return [closed for chunk in waiting for closed in self._close(chunk)]

    def received(self, slot: int) -> tuple[int, ...]:
        """The chunks whose bytes have come, so that a contributor goes on from there (rule 19)."""
        return tuple(np.flatnonzero(self._received[slot]).tolist())

    def progress(self) -> tuple[tuple[int, int], ...]:
        """(slot, chunks that have come) of every slot."""
        return tuple(enumerate(self._received.sum(axis=1).tolist()))

    def _is_planned(self, frame: Frame) -> bool:
        plan, span = self.plan, self._spans.get(frame.span)
        return (
            frame.kind == Kind.GRADIENT
            and (frame.run, frame.step) == (plan.run, plan.step)
            and (frame.fence, frame.attempt) == (plan.fence, plan.attempt)
            and span is not None
            and span.first <= frame.chunk < span.stop
            and 0 <= frame.slot < len(plan.slots)
            and bool(self._planned[frame.slot, frame.chunk] > 0)
        )

    def _is_late(self, slot: int, chunk: int) -> bool:
        """Not in yet, and dropped. A closed chunk has every slot that was not."""
        return bool(self._dropped[slot] and not self._received[slot, chunk])

    def _checked(self, frame: Frame) -> Floats | Fault:
        """scale * tokens * values of a chunk that is what its slot committed to."""
        slot, length = self.plan.slots[frame.slot], self._grid.length(frame.chunk)
        if len(frame.payload) != (expected := encoded_size(slot.codec, length)):
            return Fault.of("E207", size=len(frame.payload), expected=expected)
        if frame.slot not in self._committed:
            return Fault.of("E208", message="chunk before its leaves")
        values, leaf = decode_with_leaf(slot.codec, frame.payload, length)
        factor = np.float32(slot.scale * int(self._planned[frame.slot, frame.chunk]))
        committed = Leaf(*LEAF.unpack_from(self._committed[frame.slot], frame.chunk * LEAF.size))
        is_small = float(factor) * math.sqrt(leaf.sum_squares) <= LARGEST_TERM  # not where the sum is nan
        if leaf.digest == committed.digest and not is_small:
            return Fault.of("E212", chunk=frame.chunk)
        if leaf != committed:
            return Fault.of("E211", chunk=frame.chunk)
        values *= factor
        return values

    def _sum(self, slot: int, chunk: int, term: Floats) -> None:
        self._received[slot, chunk] = True
        if chunk in self._sums:
            self._sums[chunk] += term
        else:
            self._sums[chunk] = term

    def _close(self, chunk: int) -> list[Closed]:
        planned, received = self._planned[:, chunk], self._received[:, chunk]
        tokens = int(planned[received].sum())
        waits = ((planned > 0) & ~received & ~self._dropped).any()
        if waits or not tokens or 100 * tokens < QUORUM_PERCENT * int(planned.sum()) or chunk in self._closed:
            return []
        average = self._sums.pop(chunk)
        average *= np.float32(1 / tokens)
        payload = encode(self.plan.codec_down, average)
        self._closed[chunk] = decode_with_leaf(self.plan.codec_down, payload, average.size)[1]
        span = self._span_of[chunk]
        return [ClosedChunk(span.span, chunk, payload), *self._close_span(span)]

    def _close_span(self, span: PlannedSpan) -> list[ClosedSpan]:
        chunks = range(span.first, span.stop)
        if not all(chunk in self._closed for chunk in chunks):
            return []
        leaves = tuple(self._closed[chunk] for chunk in chunks)
        total = sum(leaf.sum_squares for leaf in leaves)
        included = self._included(chunks)
        return [ClosedSpan(span.span, span.first, span.stop, root_of(leaves), total, included, leaves)]

    def _included(self, chunks: range) -> tuple[Included, ...]:
        """Nothing is taken into a closed chunk, so what was received is what was averaged."""
        ranges = []
        for slots, group in groupby(chunks, key=self._slots_in):
            members = list(group)
            ranges.append(Included(members[0], members[-1] + 1, slots))
        return tuple(ranges)

    def _slots_in(self, chunk: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._received[:, chunk]).tolist())


def _planned_tokens(slots: Sequence[Slot], chunks: int) -> NDArray[np.int64]:
    """[slots, chunks] tokens."""
    planned = np.zeros((len(slots), chunks), np.int64)
    for row, slot in zip(planned, slots, strict=True):
        for weight in slot.weights:
            row[weight.first : weight.stop] = weight.tokens
    return planned
