"""One reducer's arithmetic in one attempt: chunks are checked and summed, sums become averages.

Not responsible for what is asked of it: which chunks are added, and when one closes, is decided by `protocol.relay`.
Holds one float32 sum per open chunk, however many contributors there are.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from peer_agent.averaging.codecs import Floats, decode_with_leaf, encode
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.merkle import LEAF, Leaf, root_of, unpack_leaves
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import PlannedSpan
from peer_agent.protocol.relay.opened import OpenPlan

NORM_TOLERANCE = 1e-9  # of float64 square roots; an honest norm differs by 1e-15
LARGEST_TERM = 2.0**111  # 2^16 slots of such terms stay below float32's 2^128


class ClosedSpan(Struct, frozen=True):
    """A span whose chunks are all closed. `sum_squares` is of the decoded averages."""

    span: int
    first: int
    stop: int
    root: bytes
    sum_squares: float
    included: tuple[Included, ...]
    leaves: tuple[Leaf, ...]


def received_span(plan: OpenPlan, span: PlannedSpan, payloads: Sequence[bytes]) -> ClosedSpan:
    """What came of a span that another averaged, under the root of what came: whether that is right, others tell."""
    chunks = range(span.first, span.stop)
    codec = plan.plan.codec_down
    pairs = zip(chunks, payloads, strict=True)
    leaves = tuple(decode_with_leaf(codec, payload, plan.grid.length(chunk))[1] for chunk, payload in pairs)
    total = sum(leaf.sum_squares for leaf in leaves)
    return ClosedSpan(span.span, span.first, span.stop, root_of(leaves), total, (), leaves)


class Reduction:
    """Sums of the chunks of one attempt, and the averages of those that closed until their span is taken. One at a time
    may call it."""

    def __init__(self, opened: OpenPlan) -> None:
        self.plan, self.grid = opened, opened.grid
        self._committed: dict[int, bytes] = {}  # slot: its leaves, packed
        self._sums: dict[int, Floats] = {}  # chunk: sum of scale * tokens * values
        self._averages: dict[int, bytes] = {}  # chunk: its average, encoded
        self._leaves: dict[int, Leaf] = {}  # chunk: leaf of its average

    def leaves(self, slot: int, data: bytes) -> Fault | None:
        """What a contributor commits to, before its first chunk."""
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
            return Fault.of("E211", chunk="list")  # a small norm with large values would escape the bound of rule 12
        self._committed[slot] = data
        return None

    def add(self, slot: int, chunk: int, payload: bytes | memoryview, *, again: bool = False) -> Fault | None:
        """Check a chunk and add it; `again`: check it only. A fault leaves the sum as it was."""
        term = self._checked(slot, chunk, payload)
        if isinstance(term, Fault):
            return term
        if again:
            return None
        if chunk in self._sums:
            self._sums[chunk] += term
        else:
            self._sums[chunk] = term
        return None

    def close(self, chunk: int, tokens: int) -> bytes:
        """The average of a chunk over so many tokens, encoded for everybody."""
        average = self._sums.pop(chunk)
        average *= np.float32(1 / tokens)
        codec = self.plan.plan.codec_down
        payload = self._averages[chunk] = encode(codec, average)
        self._leaves[chunk] = decode_with_leaf(codec, payload, average.size)[1]
        return payload

    def take_span(self, span: PlannedSpan, included: Iterable[Included]) -> tuple[ClosedSpan, list[bytes]]:
        """A span whose chunks are all closed, and their payloads; these are held here no longer."""
        chunks = range(span.first, span.stop)
        leaves = tuple(self._leaves[chunk] for chunk in chunks)
        total = sum(leaf.sum_squares for leaf in leaves)
        closed = ClosedSpan(span.span, span.first, span.stop, root_of(leaves), total, tuple(included), leaves)
        return closed, [self._averages.pop(chunk) for chunk in chunks]

    def _checked(self, slot: int, chunk: int, payload: bytes | memoryview) -> Floats | Fault:
        """scale * tokens * values of a chunk that is what its slot committed to."""
        entry, length = self.plan.slots[slot], self.grid.length(chunk)
        if len(payload) != (expected := encoded_size(entry.codec, length)):
            return Fault.of("E207", size=len(payload), expected=expected)
        if slot not in self._committed:
            return Fault.of("E208", message="chunk before its leaves")
        values, leaf = decode_with_leaf(entry.codec, payload, length)
        tokens = next((w.tokens for w in entry.weights if w.first <= chunk < w.stop), 0)
        factor = np.float32(entry.scale * tokens)
        committed = Leaf(*LEAF.unpack_from(self._committed[slot], chunk * LEAF.size))
        is_small = float(factor) * math.sqrt(leaf.sum_squares) <= LARGEST_TERM  # not where the sum is nan
        if leaf.digest == committed.digest and not is_small:
            return Fault.of("E212", chunk=chunk)
        if leaf != committed:
            return Fault.of("E211", chunk=chunk)
        values *= factor
        return values
