"""Reusable memory: scratch arrays for each thread, large arrays, and arrays for the payloads of many chunks."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec

# Each thread reuses its scratch arrays, because allocating memory costs more than the arithmetic. An array is as large
# as the largest chunk that its thread has processed.

MOST = 64  # most cached results per thread

Room = NDArray[Any]


class Scratch(threading.local):
    """Named scratch arrays for each thread. An array's contents are valid until the thread next requests that name."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}
        self._made: dict[object, Any] = {}

    def room(self, name: str, kind: type[np.generic], elements: int) -> Room:
        """Return this thread's scratch array `name`, with shape [elements] and arbitrary contents."""
        room = self._rooms.get(name)
        if room is None or room.size < elements:
            self._made.clear()  # cached results may include views of the smaller array
            room = self._rooms[name] = np.empty(elements, kind)
        return room[:elements]

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return this thread's cached result for `key`. Call `make` to compute it if there is none."""
        if key not in self._made:
            if len(self._made) >= MOST:
                self._made.clear()
            made = make()  # `make` may request a larger scratch array
            self._made[key] = made
        return self._made[key]


SCRATCH = Scratch()


# Large arrays are reused. The operating system clears each new page of memory, which took a fifth of a round's CPU
# time.

LEAST_BYTES = 1 << 20  # the allocator itself reuses smaller arrays' memory
MOST_SPARE = 4  # unused blocks kept
LOOSEST = 1.25  # a reused block is at most this many times as large as the request

Scalar = TypeVar("Scalar", bound=np.generic)
Bytes = NDArray[np.uint8]


class Memory:
    """A pool of free memory blocks, oldest first. Thread-safe without a lock."""

    def __init__(self) -> None:
        self._spare: dict[int, Bytes] = {}

    def array(self, kind: type[Scalar], elements: int) -> NDArray[Scalar]:
        """Return an array [elements] with arbitrary contents. Its memory is reused once nothing refers to it."""
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
            if self._spare.pop(id(piece), None) is not None:  # otherwise, another thread took the block first
                return piece
        return np.empty(size, np.uint8)

    def _give_back(self, piece: Bytes) -> None:
        self._spare[id(piece)] = piece
        for oldest in list(self._spare)[:-MOST_SPARE]:
            self._spare.pop(oldest, None)


MEMORY = Memory()


class Payloads:
    """One block of memory for the payloads of consecutive chunks. The block lives as long as any view of it.

    The operating system backs large blocks with large pages. Parts that are never written to take up no memory.
    """

    def __init__(self, codec: Codec, grid: Grid, first: int, stop: int) -> None:
        self._codec, self._grid, self._first = codec, grid, first
        self._room = MEMORY.array(np.uint8, sum(encoded_size(codec, grid.length(c)) for c in range(first, stop)))

    def rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return an array [count, bytes] for `count` chunks of equal length, starting at chunk `first`."""
        start = (first - self._first) * encoded_size(self._codec, self._grid.chunk_elements)
        size = encoded_size(self._codec, self._grid.length(first))
        return self._room[start : start + count * size].reshape(count, size)
