"""Convert shares to whole chunks. Reducers are in id order, and ties go to the earlier reducer (rule 29)."""

import math
from collections.abc import Sequence

from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlannedSpan

# Shares are cut into spans of a 64th of the vector, at least 1 MiB. If a reducer is lost, its finished spans remain.
SPAN_BYTES = 1 << 20


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Return integers proportional to `shares` that sum to `total`. Ties go to the earlier share."""
    whole = math.fsum(shares)  # `sum` rounds floats differently from Python 3.12 on
    exact = [share * total / whole for share in shares]
    counts = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def spans_of(
    reducers: Sequence[PeerId],
    shares: Sequence[float],
    missing: Sequence[tuple[int, int]],
    grid: Grid,
    *,
    attempt: int,
    first_span: int = 0,
) -> list[PlannedSpan]:
    """Divide the chunk ranges `missing` among the reducers (in id order) by share, and cut them into spans."""
    ranked = sorted(zip(reducers, shares, strict=True), key=lambda pair: pair[0])
    counts = largest_remainder([share for _, share in ranked], sum(stop - first for first, stop in missing))
    length = max(1, max(grid.elements * 4 // 64, SPAN_BYTES) // (grid.chunk_elements * 4))
    chunks = [chunk for first, stop in missing for chunk in range(first, stop)]
    spans: list[PlannedSpan] = []
    taken = 0
    for (reducer, _), count in zip(ranked, counts, strict=True):
        for first, stop in _runs(chunks[taken : taken + count], length):
            span = PlannedSpan(span=first_span + len(spans), first=first, stop=stop, reducer=reducer, attempt=attempt)
            spans.append(span)
        taken += count
    return spans


def _runs(chunks: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Group chunks into ranges of at most `length` consecutive chunks."""
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and runs[-1][1] == chunk and chunk - runs[-1][0] < length:
            runs[-1] = (runs[-1][0], chunk + 1)
        else:
            runs.append((chunk, chunk + 1))
    return runs
