"""Count the gradient bytes that each reducer averaged in a committed entry.

Relays and auxiliaries get credit for these bytes.
"""

from collections.abc import Iterable

import numpy as np

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Contribution, Record
from peer_agent.protocol.recipe import Codec


def averaged_bytes(record: Record) -> dict[PeerId, int]:
    """Return how many encoded gradient bytes each reducer added to its sums."""
    grid = Grid(record.elements, record.chunk_elements)
    by_codec: dict[Codec, list[Contribution]] = {}
    for contribution in record.contributions:
        by_codec.setdefault(contribution.codec, []).append(contribution)
    added = np.zeros(grid.chunks, np.int64)
    for codec, contributions in by_codec.items():
        added += _added(contributions, grid.chunks) * _sizes(grid, codec)
    given: dict[PeerId, int] = {}
    for span in record.spans:
        reducer = PeerId(span.reducer)
        given[reducer] = given.get(reducer, 0) + int(added[span.first : span.stop].sum())
    return given


def _added(contributions: Iterable[Contribution], chunks: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return, for each chunk, the number of contributions that include it."""
    edges = np.zeros(chunks + 1, np.int64)
    for contribution in contributions:
        for part in contribution.included:
            edges[min(part.first, chunks)] += 1
            edges[min(part.stop, chunks)] -= 1
    return np.cumsum(edges)[:chunks]


def _sizes(grid: Grid, codec: Codec) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the encoded size of each chunk in bytes. The last chunk may be shorter than the others."""
    sizes = np.full(grid.chunks, encoded_size(codec, grid.chunk_elements), np.int64)
    if grid.chunks:
        sizes[-1] = encoded_size(codec, grid.length(grid.chunks - 1))
    return sizes
