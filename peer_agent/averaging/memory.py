"""Memory that is used again: what a thread works in, large arrays, and room for the payloads of many chunks."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec

# Arrays of a thread: fresh memory costs more than the arithmetic that is done in it. Each is as large as the largest
# chunks that its thread has seen.

MOST = 64  # kinds and shapes that a thread keeps; a run has two lengths of chunks

Room = NDArray[Any]


class Scratch(threading.local):
    """What is in an array here lasts until the same thread asks for the same name again."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}
        self._made: dict[object, Any] = {}

    def room(self, name: str, kind: type[np.generic], elements: int) -> Room:
        """[elements] of what was there before."""
        room = self._rooms.get(name)
        if room is None or room.size < elements:
            self._made.clear()  # views of the smaller one
            room = self._rooms[name] = np.empty(elements, kind)
        return room[:elements]

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gave this thread for this key: constants, and views of rooms."""
        if key not in self._made:
            if len(self._made) >= MOST:
                self._made.clear()
            made = make()  # which may ask for a larger room
            self._made[key] = made
        return self._made[key]


SCRATCH = Scratch()


# Large arrays. The system clears each page that it gives out anew: a fifth of the processor time of a round was spent
# on that.

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


class Payloads:
    """Room for the payloads of neighbouring chunks, in one piece, which lasts as long as any of them.

    The system gives large pieces out in large pages, and what is not written takes no memory.
    """

    def __init__(self, codec: Codec, grid: Grid, first: int, stop: int) -> None:
        self._codec, self._grid, self._first = codec, grid, first
        self._room = MEMORY.array(np.uint8, sum(encoded_size(codec, grid.length(c)) for c in range(first, stop)))

    def rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """[count, bytes] for so many chunks of one length."""
        start = (first - self._first) * encoded_size(self._codec, self._grid.chunk_elements)
        size = encoded_size(self._codec, self._grid.length(first))
        return self._room[start : start + count * size].reshape(count, size)
