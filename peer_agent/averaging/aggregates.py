"""Ways to combine the contributors' values of one chunk into its average.

`Reduction` opens one aggregate per chunk, adds each slot's checked values once, and closes it. An aggregate may keep
the values of all slots until it is closed. Under a plan with deadlines, a reducer reads no further from a slot that is
far ahead of the others, which limits the number of open chunks (`relay.reducing.is_ahead`).
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from peer_agent.averaging.codecs import Floats

Room = Callable[[int], Floats]  # returns an array of this many float32 elements, with any contents


class Aggregate(Protocol):
    """The values of one chunk [n] so far."""

    tokens: int  # of all slots added

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        """Add a slot's values [n], averaged over `tokens` loss tokens. `scale` is the slot's clipping factor (rule 12).

        The caller reuses the memory of `values`, and this call may overwrite it.
        """
        ...

    def close(self) -> Floats:
        """Return the average [n]. The aggregate must not be used afterwards."""
        ...


class Mean:
    """The mean weighted by tokens: one float32 sum, however many slots there are. Scales affect only the numerator."""

    def __init__(self, room: Room) -> None:
        self.tokens = 0
        self._room = room
        self._sum: Floats | None = None

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        del slot
        factor = np.float32(scale * tokens)
        if self._sum is None:
            self._sum = np.multiply(values, factor, out=self._room(values.size))
        else:
            np.multiply(values, factor, out=values)
            self._sum += values
        self.tokens += tokens

    def close(self) -> Floats:
        assert self._sum is not None
        return np.multiply(self._sum, np.float32(1 / self.tokens), out=self._sum)
