"""Who is credited with what. Credit is in token-elements; samples and tokens are rounded from it once per commit."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import ChunkRange, Included, joined
from peer_agent.protocol.messages import Slot


def credit_of(slots: Sequence[Slot], included: Iterable[Included], grid: Grid) -> dict[int, int]:
    """Token-elements per slot: the sum over included chunks of (elements in the chunk x the slot's tokens there)."""
    credit = dict.fromkeys(range(len(slots)), 0)
    for part in included:
        for slot in part.slots:
            for weight in slots[slot].weights:
                first, stop = max(part.first, weight.first), min(part.stop, weight.stop)
                if first < stop:
                    credit[slot] += weight.tokens * (grid.bounds(stop - 1)[1] - grid.bounds(first)[0])
    return credit


def ranges_of(included: Iterable[Included]) -> dict[int, tuple[ChunkRange, ...]]:
    """The chunks in which each slot is averaged, of parts in the order of their chunks."""
    ranges: dict[int, list[ChunkRange]] = {}
    for part in included:
        there = ChunkRange(part.first, part.stop)
        for slot in part.slots:
            ranges.setdefault(slot, []).append(there)
    return {slot: joined(parts) for slot, parts in ranges.items()}


def rounded(exact: Mapping[int, Fraction]) -> dict[int, int]:
    """Integers by largest remainder: they sum to the rounded total, ties go to the lower slot."""
    total = round(sum(exact.values(), Fraction(0)))
    whole = {slot: int(value) for slot, value in exact.items()}
    order = sorted(exact, key=lambda slot: (whole[slot] - exact[slot], slot))
    for slot in order[: total - sum(whole.values())]:
        whole[slot] += 1
    return whole
