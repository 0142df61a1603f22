"""Large arrays whose memory is used again as soon as no view of them is held.

The system clears each page that it gives out anew: a fifth of the processor time of a round was spent on that.
"""

import weakref
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 1 << 20  # below that the allocator keeps memory itself
MOST_SPARE = 4  # pieces that are kept while nobody uses them
LOOSEST = 1.25  # times what is asked for: a larger piece is left for who needs it

Scalar = TypeVar("Scalar", bound=np.generic)
Bytes = NDArray[np.uint8]


class Memory:
    """Pieces that are spare, in the order in which they became so. Threads may share it.

    There is no lock: a piece comes back wherever its last view is let go, which may be in the midst of `array`.
    """

    def __init__(self) -> None:
        self._spare: dict[int, Bytes] = {}

    def array(self, kind: type[Scalar], elements: int) -> NDArray[Scalar]:
        """[elements], with anything in them."""
        size = np.dtype(kind).itemsize * elements
        if size < LEAST_BYTES:
            return np.empty(elements, kind)
        piece = self._take(size)
        array: NDArray[Scalar] = np.frombuffer(piece.data[:size], kind)
        weakref.finalize(array, self._give_back, piece).atexit = False
        return array

    def _take(self, size: int) -> Bytes:
        fitting = [piece for piece in list(self._spare.values()) if size <= piece.size <= LOOSEST * size]
        for piece in sorted(fitting, key=len):
            if self._spare.pop(id(piece), None) is not None:  # else another thread was faster
                return piece
        return np.empty(size, np.uint8)

    def _give_back(self, piece: Bytes) -> None:
        self._spare[id(piece)] = piece
        for oldest in list(self._spare)[:-MOST_SPARE]:
            self._spare.pop(oldest, None)


MEMORY = Memory()
