"""Room for the payloads of neighbouring chunks, in one piece.

The system gives large pieces out in large pages, and what is not written takes no memory.
"""

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.memory import MEMORY
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec


class Payloads:
    """It lasts as long as any payload in it."""

    def __init__(self, codec: Codec, grid: Grid, first: int, stop: int) -> None:
        self._codec, self._grid, self._first = codec, grid, first
        self._room = MEMORY.array(np.uint8, sum(encoded_size(codec, grid.length(c)) for c in range(first, stop)))

    def rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """[count, bytes] for so many chunks of one length."""
        start = (first - self._first) * encoded_size(self._codec, self._grid.chunk_elements)
        size = encoded_size(self._codec, self._grid.length(first))
        return self._room[start : start + count * size].reshape(count, size)
