"""Who reduces what: the share linear program of rule 26 in its closed form over relays (rule 28), then whole chunks.

Here every contributor sends `up` bytes, every receiver gets `down` bytes, and only pure reducers (relays) reduce, so
that each row is `slope * share <= capacity * T`. The general program comes with direct links.
"""

from collections.abc import Sequence

from msgspec import Struct

from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlannedSpan

QUORUM_PERCENT = 70  # of a batch's samples, and of each chunk's planned tokens; below it a round is void (rule 7)
SPAN_BYTES = 1 << 20  # a share is cut in spans of max(P/64, 1 MiB), so that a dead reducer costs only what is open


class Reducer(Struct, frozen=True):
    """A relay that may reduce, with its upload and download in bytes per second (0: not measured yet)."""

    peer: PeerId
    upload_bps: float
    download_bps: float


class Participant(Struct, frozen=True):
    """A contributor or receiver: what it sends up, and its own limits (0: not measured yet)."""

    up_bytes: float
    upload_bps: float
    download_bps: float


class Shares(Struct, frozen=True):
    """Each reducer's share of the vector (sum 1, by the reducers' order) and the round time it gives, in seconds."""

    shares: tuple[float, ...]
    duration_s: float


def shares_of(
    reducers: Sequence[Reducer],
    contributors: Sequence[Participant],
    receivers: Sequence[Participant],
    down_bytes: float,
) -> Shares:
    """The optimum of the share program where only relays reduce: share_j = T* / time_j, T* = 1 / sum(1 / time_j).

    time_j is how long reducer j would take for the whole vector. Members bound T* from below by their own links; the
    shares then stay in the same proportion (rule 29). Unmeasured reducers count as the slowest measured one.
    Raises ValueError without reducers.
    """
    if not reducers:
        raise ValueError("nobody may reduce")
    arriving = sum(member.up_bytes for member in contributors)
    leaving = down_bytes * len(receivers)
    times = _times(reducers, arriving, leaving)
    if times is None:
        return Shares((1 / len(reducers),) * len(reducers), _slowest(contributors, receivers, down_bytes))
    together = 1 / sum(1 / time for time in times)
    duration = max(together, _slowest(contributors, receivers, down_bytes))
    return Shares(tuple(together / time for time in times), duration)


def _times(reducers: Sequence[Reducer], arriving: float, leaving: float) -> list[float] | None:
    """Seconds each reducer needs for the whole vector, None where none is measured."""
    measured = [
        max(arriving / r.download_bps, leaving / r.upload_bps) if r.upload_bps and r.download_bps else None
        for r in reducers
    ]
    known = [time for time in measured if time]
    if not known:
        return None
    return [time or max(known) for time in measured]


def _slowest(contributors: Sequence[Participant], receivers: Sequence[Participant], down_bytes: float) -> float:
    """No plan beats the slowest participant: its bytes over its own link. 0 where nothing is measured."""
    up = (member.up_bytes / member.upload_bps for member in contributors if member.upload_bps)
    down = (down_bytes / member.download_bps for member in receivers if member.download_bps)
    return max((*up, *down), default=0.0)


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Integers in proportion to `shares` that sum to `total`; ties go to the earlier one."""
    whole = sum(shares)
    exact = [share * total / whole for share in shares]
    counts = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def spans_of(
    reducers: Sequence[Reducer],
    shares: Sequence[float],
    missing: Sequence[tuple[int, int]],
    grid: Grid,
    *,
    attempt: int,
    first_span: int = 0,
) -> list[PlannedSpan]:
    """Deal the chunk ranges `missing` to the reducers in id order by their shares, and cut each share into spans."""
    ranked = sorted(zip(reducers, shares, strict=True), key=lambda pair: pair[0].peer)
    counts = largest_remainder([share for _, share in ranked], sum(stop - first for first, stop in missing))
    length = max(1, max(grid.elements * 4 // 64, SPAN_BYTES) // (grid.chunk_elements * 4))
    chunks = [chunk for first, stop in missing for chunk in range(first, stop)]
    spans: list[PlannedSpan] = []
    taken = 0
    for (reducer, _), count in zip(ranked, counts, strict=True):
        for first, stop in _runs(chunks[taken : taken + count], length):
            span = PlannedSpan(
                span=first_span + len(spans), first=first, stop=stop, reducer=reducer.peer, attempt=attempt
            )
            spans.append(span)
        taken += count
    return spans


def _runs(chunks: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Consecutive chunks as ranges of at most `length`."""
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and runs[-1][1] == chunk and chunk - runs[-1][0] < length:
            runs[-1] = (runs[-1][0], chunk + 1)
        else:
            runs.append((chunk, chunk + 1))
    return runs
