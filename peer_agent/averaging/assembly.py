"""A round's averaged gradient, assembled from chunks as they arrive.

Chunks are tentative. The gradient leaves this module only if its hashes match the roots in a commit record (rule 6).
"""

import math
from collections.abc import Sequence
from threading import Lock

import numpy as np

from peer_agent.averaging.codecs import Floats, decode_into, decode_with_leaf
from peer_agent.averaging.memory import MEMORY, SCRATCH
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.merkle import SUM_TOLERANCE, Leaf, root_of, span_leaf
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.protocol.messages import PlanHead, PlannedSpan
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.wire import Frame, Kind


def spans_match(entry: SpanEntry, leaves: Sequence[Leaf]) -> bool:
    """Return True if these leaves hash to the root in the span's record entry and add up to its sum of squares.

    With a wrong sum, the update would be clipped by a wrong factor.
    """
    if len(leaves) != entry.stop - entry.first:
        return False
    whole = span_leaf(leaves)
    is_sum = math.isclose(whole.sum_squares, entry.sum_squares, rel_tol=SUM_TOLERANCE)
    return whole.digest.hex() == entry.root and is_sum


def span_sizes(record: RecordHead, entry: SpanEntry) -> list[int]:
    """Return the size in bytes of each encoded chunk of a record's span."""
    grid = Grid(record.elements, record.chunk_elements)
    return [encoded_size(record.codec, grid.length(chunk)) for chunk in range(entry.first, entry.stop)]


def leaves_of_span(
    codec: Codec, grid: Grid, entry: SpanEntry, payloads: Sequence[bytes | memoryview]
) -> list[Leaf] | None:
    """Decode a span's chunks and return their leaves.

    Return None if the payloads do not match the root and the sum of squares in the span's record entry.
    """
    lengths = [grid.length(chunk) for chunk in range(entry.first, entry.stop)]
    if [len(payload) for payload in payloads] != [encoded_size(codec, length) for length in lengths]:
        return None
    leaves = []
    for payload, length in zip(payloads, lengths, strict=True):
        leaves.append(decode_with_leaf(codec, payload, SCRATCH.room("span", np.float32, length)))
    return leaves if spans_match(entry, leaves) else None


class Assembly:
    """A round's averaged gradient, decoded as chunks arrive. `fill` and `keep_chunk` may run in different threads."""

    def __init__(self, grid: Grid, codec: Codec) -> None:
        self.grid = grid
        self.codec = codec
        # `gradient` returns this array only once every chunk is in place.
        self._values = MEMORY.array(np.float32, grid.elements)
        self._leaves: list[Leaf | None] = [None] * grid.chunks
        # First chunk, stop and root of each span that has matched a record.
        self._matched: set[tuple[int, int, str]] = set()
        self._plan: PlanHead | None = None
        self._spans: dict[int, PlannedSpan] = {}
        self._lock = Lock()  # a chunk's values and leaf change together

    def follow(self, plan: PlanHead) -> None:
        """Switch to a new plan for the round, and keep the chunks of spans that the plan leaves unchanged.

        Raises ValueError if the plan's grid or codec differs from those of this assembly.
        """
        if (Grid(plan.elements, plan.chunk_elements), plan.codec_down) != (self.grid, self.codec):
            raise ValueError("this plan needs another assembly")
        spans = {span.span: span for span in plan.spans}
        kept = {(s.span, s.first, s.stop, s.attempt) for s in self._spans.values()}
        for span in spans.values():
            if (span.span, span.first, span.stop, span.attempt) not in kept:
                self._leaves[span.first : span.stop] = [None] * (span.stop - span.first)
        self._matched.clear()
        self._plan, self._spans = plan, spans

    def keep_chunk(self, frame: Frame) -> bool:
        """Store an averaged chunk if it belongs to the current plan.

        Return True if it was stored, or False if it was already here or does not fit the plan.
        """
        if not self._is_planned(frame) or self._leaves[frame.chunk]:
            return False
        length = self.grid.length(frame.chunk)
        if len(frame.payload) != encoded_size(self.codec, length):
            return False
        with self._lock:
            if self._leaves[frame.chunk]:
                return False
            self._leaves[frame.chunk] = decode_with_leaf(self.codec, frame.payload, self._chunk(frame.chunk))
        return True

    def fill(self, entry: SpanEntry, payloads: Sequence[bytes | memoryview]) -> None:
        """Insert a span's chunks that were fetched from a relay's log.

        Raises Problem E111 if the bytes do not match the span's record entry.
        """
        leaves = leaves_of_span(self.codec, self.grid, entry, payloads)
        if leaves is None:
            raise Problem.of("E111", name=f"span {entry.span}", url="a relay's log")
        for chunk, (payload, leaf) in enumerate(zip(payloads, leaves, strict=True), entry.first):
            with self._lock:
                decode_into(self.codec, payload, self._chunk(chunk))
                self._leaves[chunk] = leaf
                self._matched.clear()

    def holds(self) -> bytes | None:
        """Return the Merkle root over the leaves of the plan's spans, or None while any chunk is missing."""
        if self._plan is None or None in self._leaves:
            return None
        spans = sorted(self._spans.values(), key=lambda span: span.first)
        return root_of([span_leaf([leaf for leaf in self._leaves[s.first : s.stop] if leaf]) for s in spans])

    def missing(self, record: RecordHead) -> list[SpanEntry]:
        """Return the record's spans whose chunks are missing here, or differ from those in the record.

        Raises ValueError if the record has another grid or codec, or if its spans do not cover the vector.
        """
        if (Grid(record.elements, record.chunk_elements), record.codec) != (self.grid, self.codec):
            raise ValueError("this record needs another assembly")
        if not _covers(record.spans, self.grid.chunks):
            raise ValueError("the record's spans do not cover the vector")
        return [entry for entry in record.spans if not self._holds(entry)]

    def gradient(self, record: RecordHead) -> Floats | list[SpanEntry]:
        """Return the averaged gradient [P], without copying it, if every span matches the record.

        Otherwise, return the spans that do not match, as `missing` does.
        """
        return self.missing(record) or self._values

    def _is_planned(self, frame: Frame) -> bool:
        plan, span = self._plan, self._spans.get(frame.span)
        return (
            plan is not None
            and span is not None
            and frame.kind == Kind.AVERAGE
            and (frame.run, frame.step, frame.fence) == (plan.run, plan.step, plan.fence)
            and frame.attempt == span.attempt
            and span.first <= frame.chunk < span.stop
        )

    def _holds(self, entry: SpanEntry) -> bool:
        place = (entry.first, entry.stop, entry.root)
        if place not in self._matched:
            leaves = [leaf for leaf in self._leaves[entry.first : entry.stop] if leaf]
            if not spans_match(entry, leaves):
                return False
            self._matched.add(place)
        return True

    def _chunk(self, chunk: int) -> Floats:
        start, stop = self.grid.bounds(chunk)
        return self._values[start:stop]


def _covers(spans: Sequence[SpanEntry], chunks: int) -> bool:
    position = 0
    for span in sorted(spans, key=lambda span: span.first):
        if span.first != position or span.stop < span.first:
            return False
        position = span.stop
    return position == chunks
