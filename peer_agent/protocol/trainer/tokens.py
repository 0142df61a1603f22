"""Loss tokens by chunk, as ranges [first, stop) that cover the grid in order: the weights of the held work (rule 9)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from peer_agent.protocol.log.records import Contribution
from peer_agent.protocol.messages import Weight

Ranges = tuple[Weight, ...]
Span = tuple[int, int]  # chunks [first, stop)


def spans_of(own: Contribution) -> tuple[Span, ...]:
    """Return the ranges of chunks whose averages include a contribution."""
    return tuple((part.first, part.stop) for part in own.included)


def nothing(chunks: int) -> Ranges:
    return (Weight(0, chunks, 0),) if chunks else ()


def added(ranges: Ranges, tokens: int) -> Ranges:
    """Return the ranges with `tokens` added to every chunk."""
    return tuple(Weight(part.first, part.stop, part.tokens + tokens) for part in ranges)


def cleared(ranges: Ranges, included: Iterable[Span]) -> Ranges:
    """Return the ranges with no tokens in the included chunks. Adjacent ranges with equal tokens are merged."""
    spans = sorted(included)
    merged: list[Weight] = []
    for part in ranges:
        for first, stop in _pieces(part, spans):
            tokens = 0 if any(start <= first < end for start, end in spans) else part.tokens
            if merged and merged[-1].tokens == tokens:
                merged[-1] = Weight(merged[-1].first, stop, tokens)
            else:
                merged.append(Weight(first, stop, tokens))
    return tuple(merged)


def _pieces(part: Weight, spans: Sequence[Span]) -> list[Span]:
    """Cut a range wherever one of the spans begins or ends inside it."""
    inner = {edge for span in spans for edge in span if part.first < edge < part.stop}
    edges = [part.first, *sorted(inner), part.stop]
    return list(pairwise(edges))


def highest(ranges: Ranges) -> int:
    return max((part.tokens for part in ranges), default=0)
