"""What the encoding of averages lost, so that it is in the next ones: error feedback on the way down.

A reducer adds to the average of a chunk what its encoding of that chunk lost in the update before. It moves with the
commit alone, and is forgotten where somebody else reduced the chunk: nothing is then known of what was lost.
"""

from collections.abc import Iterable

import numpy as np

from peer_agent.averaging.codecs import Floats
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import Place

FED_BACK: frozenset[Codec] = frozenset({"int8", "int4"})  # of others next to nothing is lost
Part = tuple[int, int, int]  # attempt, and chunks [first, stop)


class Residuals:
    """By chunk, [n] float32; at most two vectors of what this reducer has a share of."""

    def __init__(self) -> None:
        self._index = -1  # of the entry that was committed last
        self._step = -1  # whose updates' averages these are to be added to
        self._kept: dict[int, Floats] = {}
        self._round = (0, 0)  # fence and step of what is open
        self._open: dict[tuple[int, int], Floats] = {}  # by attempt and chunk

    def begin(self, place: Place) -> None:
        """An attempt. What is open of another step, or of another host, comes to nothing."""
        if self._round != (place.fence, place.step):
            self._round = place.fence, place.step
            self._open = {}

    def add_to(self, step: int, chunk: int, average: Floats) -> None:
        """Add what the update before has lost of a chunk to its average at this step."""
        if step == self._step and chunk in self._kept:
            np.add(average, self._kept[chunk], out=average)

    def keep(self, attempt: int, chunk: int, lost: Floats) -> None:
        """So much is lost, if this attempt's average gets into the update."""
        self._open[attempt, chunk] = lost

    def commit(self, index: int, fence: int, step: int, parts: Iterable[Part]) -> None:
        """The entry that makes this step has these parts from here, and the others from others. Once for each.

        Entries are told apart by their index: after a rollback the same steps are made again.
        """
        if index <= self._index:
            return
        is_ours = self._round == (fence, step - 1)
        chunks = [(attempt, chunk) for attempt, first, stop in parts for chunk in range(first, stop)]
        self._kept = {c: self._open[a, c] for a, c in chunks if (a, c) in self._open} if is_ours else {}
        self._index, self._step, self._open = index, step, {}

    def void(self) -> None:
        """The round makes no update: what was lost before it is still to be added."""
        self._open = {}
