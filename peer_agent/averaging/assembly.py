"""The averaged gradient, put together from chunks as they come.

Chunks are tentative: only bytes under the roots that a commit record names are ever given out (rule 6).
"""

from collections.abc import Sequence
from threading import Lock

import numpy as np

from peer_agent.averaging.codecs import Floats, decode_with_leaf
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.merkle import Leaf, root_of, root_over
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.protocol.messages import PlanHead, PlannedSpan
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.wire import Frame, Kind


def spans_match(entry: SpanEntry, leaves: Sequence[Leaf]) -> bool:
    """Whether these are the leaves under the root that a record names."""
    return len(leaves) == entry.stop - entry.first and root_of(leaves).hex() == entry.root


def decode_span(
    codec: Codec, grid: Grid, entry: SpanEntry, payloads: Sequence[bytes | memoryview]
) -> list[tuple[Floats, Leaf]] | None:
    """Values and leaf of each chunk; None where these are not the bytes that the record names."""
    lengths = [grid.length(chunk) for chunk in range(entry.first, entry.stop)]
    if [len(payload) for payload in payloads] != [encoded_size(codec, length) for length in lengths]:
        return None
    chunks = [decode_with_leaf(codec, *pair) for pair in zip(payloads, lengths, strict=True)]
    return chunks if spans_match(entry, [leaf for _, leaf in chunks]) else None


class Assembly:
    """One round's averaged gradient, or one that is replayed from the log (then no plan is followed).

    Chunks are decoded as they come, so that a commit costs a receiver no more than its roots. A thread may `fill`
    while another takes frames.
    """

    def __init__(self, grid: Grid, codec: Codec) -> None:
        self.grid = grid
        self.codec = codec
        self._values = np.zeros(grid.elements, np.float32)
        self._leaves: list[Leaf | None] = [None] * grid.chunks
        self._plan: PlanHead | None = None
        self._spans: dict[int, PlannedSpan] = {}
        self._lock = Lock()  # values and their leaf change together

    def follow(self, plan: PlanHead) -> None:
        """Take this plan's chunks from now on. Those of spans that it kept from earlier attempts stay.

        Raises ValueError where it cuts or encodes the vector in another way.
        """
        if (Grid(plan.elements, plan.chunk_elements), plan.codec_down) != (self.grid, self.codec):
            raise ValueError("this plan needs another assembly")
        spans = {span.span: span for span in plan.spans}
        kept = {(s.span, s.first, s.stop, s.attempt) for s in self._spans.values()}
        for span in spans.values():
            if (span.span, span.first, span.stop, span.attempt) not in kept:
                self._leaves[span.first : span.stop] = [None] * (span.stop - span.first)
        self._plan, self._spans = plan, spans

    def keep_chunk(self, frame: Frame) -> bool:
        """Keep an averaged chunk that the plan names; whether it was new. Anything else is ignored."""
        if not self._is_planned(frame) or self._leaves[frame.chunk]:
            return False
        length = self.grid.length(frame.chunk)
        if len(frame.payload) != encoded_size(self.codec, length):
            return False
        values, leaf = decode_with_leaf(self.codec, frame.payload, length)
        with self._lock:
            if self._leaves[frame.chunk]:
                return False
            self._put(frame.chunk, values, leaf)
        return True

    def fill(self, entry: SpanEntry, payloads: Sequence[bytes | memoryview]) -> None:
        """Put in a span that was fetched from the log. Raises Problem E111 where a record names other bytes."""
        chunks = decode_span(self.codec, self.grid, entry, payloads)
        if chunks is None:
            raise Problem.of("E111", name=f"span {entry.span}", url="a relay's log")
        with self._lock:
            for chunk, (values, leaf) in enumerate(chunks, entry.first):
                self._put(chunk, values, leaf)

    def holds(self) -> bytes | None:
        """The root over the roots of all spans of the plan, None while a chunk has not come."""
        if self._plan is None or None in self._leaves:
            return None
        spans = sorted(self._spans.values(), key=lambda span: span.first)
        return root_over([root_of([leaf for leaf in self._leaves[s.first : s.stop] if leaf]) for s in spans])

    def missing(self, record: RecordHead) -> list[SpanEntry]:
        """The spans that have not come, or came with other bytes than the record names.

        Raises ValueError for a record of another grid or codec, or whose spans are not the whole vector.
        """
        if (Grid(record.elements, record.chunk_elements), record.codec) != (self.grid, self.codec):
            raise ValueError("this record needs another assembly")
        if sorted(c for s in record.spans for c in range(s.first, s.stop)) != list(self.grid):
            raise ValueError("the record's spans do not cover the vector")
        return [entry for entry in record.spans if not self._holds(entry)]

    def gradient(self, record: RecordHead) -> Floats | list[SpanEntry]:
        """[P] the averaged gradient once every span is what the record names, else `missing`. Not a copy."""
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
        leaves = [leaf for leaf in self._leaves[entry.first : entry.stop] if leaf]
        return spans_match(entry, leaves)

    def _put(self, chunk: int, values: Floats, leaf: Leaf) -> None:
        start, stop = self.grid.bounds(chunk)
        self._values[start:stop] = values
        self._leaves[chunk] = leaf
