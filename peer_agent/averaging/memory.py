"""Reusable memory: scratch space of a thread, large arrays, and room for the payloads of many chunks."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.recipe import Codec

# A thread's scratch arrays: allocating fresh memory costs more than the arithmetic in it. Each array is as large as the
# largest chunk that its thread has seen.

MOST = 64  # kinds and shapes per thread; a run has two chunk lengths

Room = NDArray[Any]


class Scratch(threading.local):
    """Scratch arrays by name. Their content is valid until the same thread asks for the same name again."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}
        self._made: dict[object, Any] = {}

    def room(self, name: str, kind: type[np.generic], elements: int) -> Room:
        """Return [elements] with arbitrary content."""
        room = self._rooms.get(name)
        if room is None or room.size < elements:
            self._made.clear()  # views of the smaller one
            room = self._rooms[name] = np.empty(elements, kind)
        return room[:elements]

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return this thread's result of `make` for this key: constants, and views of rooms."""
        if key not in self._made:
            if len(self._made) >= MOST:
                self._made.clear()
            made = make()  # may ask for a larger room
            self._made[key] = made
        return self._made[key]


SCRATCH = Scratch()


# Large arrays are reused, because the system clears each page that it hands out: that took a fifth of a round's CPU
# time.

LEAST_BYTES = 1 << 20  # the allocator itself keeps smaller pieces
MOST_SPARE = 4  # unused pieces kept
LOOSEST = 1.25  # times the size asked for: a larger piece stays for a larger request

Scalar = TypeVar("Scalar", bound=np.generic)
Bytes = NDArray[np.uint8]


class Memory:
    """Spare pieces of memory, oldest first. Thread-safe without a lock: pieces may return in the midst of `array`."""

    def __init__(self) -> None:
        self._spare: dict[int, Bytes] = {}

    def array(self, kind: type[Scalar], elements: int) -> NDArray[Scalar]:
        """Return [elements] with arbitrary content."""
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
    """Room for the payloads of neighbouring chunks in one piece, which lives as long as any view of it.

    The system backs large pieces with large pages, and unwritten parts take no memory.
    """

    def __init__(self, codec: Codec, grid: Grid, first: int, stop: int) -> None:
        self._codec, self._grid, self._first = codec, grid, first
        self._room = MEMORY.array(np.uint8, sum(encoded_size(codec, grid.length(c)) for c in range(first, stop)))

    def rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return [count, bytes] for `count` chunks of one length."""
        start = (first - self._first) * encoded_size(self._codec, self._grid.chunk_elements)
        size = encoded_size(self._codec, self._grid.length(first))
        return self._room[start : start + count * size].reshape(count, size)
