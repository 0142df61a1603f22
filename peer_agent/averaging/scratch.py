"""Arrays that a thread uses again: fresh memory costs more than the arithmetic that is done in it.

Each thread has its own, as large as the largest chunks that it has seen.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
