"""The closing rule (rule 7): a chunk closes when every planned slot has come or is dropped, and enough tokens came.

Knows which slot's bytes lie in which chunk, and nothing of the bytes.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import PlannedSpan, Slot
from peer_agent.protocol.plan import QUORUM_PERCENT


class Coverage:
    """The chunks of one reducer's spans. Columns of the arrays are these chunks, rows are the plan's slots."""

    def __init__(self, slots: Sequence[Slot], spans: Iterable[PlannedSpan]) -> None:
        self.chunks = [chunk for span in spans for chunk in range(span.first, span.stop)]
        self._column = {chunk: column for column, chunk in enumerate(self.chunks)}
        self._planned = _planned_tokens(slots, np.array(self.chunks, np.int64))
        self._received = np.zeros(self._planned.shape, np.bool_)
        self._dropped = np.zeros(len(slots), np.bool_)
        self._whole = self._planned.sum(axis=0)
        self._came = np.zeros(len(self.chunks), np.int64)  # tokens
        self._awaited = (self._planned > 0).sum(axis=0)  # slots
        self._closed = np.zeros(len(self.chunks), np.bool_)

    def asks_for(self, slot: int, chunk: int) -> bool:
        """Whether the plan gives this slot weight in this chunk, here, and the slot is not dropped before it came."""
        column = self._column.get(chunk)
        if column is None or not 0 <= slot < len(self._dropped) or not self._planned[slot, column]:
            return False
        return bool(self._received[slot, column] or not self._dropped[slot])

    def has(self, slot: int, chunk: int) -> bool:
        """Whether these bytes have come."""
        return bool(self._received[slot, self._column[chunk]])

    def add(self, slot: int, chunk: int) -> list["Closing"]:
        """These bytes are in the sum; the chunk that closes by it."""
        column = self._column[chunk]
        self._received[slot, column] = True
        self._came[column] += self._planned[slot, column]
        self._awaited[column] -= 1
        return self._close([column])

    def drop(self, slot: int) -> list["Closing"]:
        """Do without a slot in every chunk that does not hold its bytes yet; what closes by that."""
        if not 0 <= slot < len(self._dropped) or self._dropped[slot]:
            return []
        self._dropped[slot] = True
        late = (self._planned[slot] > 0) & ~self._received[slot]
        self._awaited -= late
        return self._close(np.flatnonzero(late).tolist())

    def _close(self, columns: Iterable[int]) -> list["Closing"]:
        closing = []
        for column in columns:
            tokens = int(self._came[column])
            has_quorum = tokens and 100 * tokens >= QUORUM_PERCENT * int(self._whole[column])
            if has_quorum and not self._awaited[column] and not self._closed[column]:
                self._closed[column] = True
                closing.append(Closing(self.chunks[column], tokens))
        return closing

    def is_complete(self, span: PlannedSpan) -> bool:
        """Whether every chunk of a span is closed."""
        first = self._column[span.first]
        return bool(self._closed[first : first + span.stop - span.first].all())

    def included(self, span: PlannedSpan) -> tuple[Included, ...]:
        """Nothing is taken into a closed chunk, so what was received is what was averaged."""
        ranges = []
        for slots, group in groupby(range(span.first, span.stop), key=self._slots_in):
            members = list(group)
            ranges.append(Included(members[0], members[-1] + 1, slots))
        return tuple(ranges)

    def _slots_in(self, chunk: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._received[:, self._column[chunk]]).tolist())

    def received(self, slot: int) -> tuple[int, ...]:
        """The chunks whose bytes have come, so that a contributor goes on from there (rule 19)."""
        return tuple(self.chunks[column] for column in np.flatnonzero(self._received[slot]).tolist())

    def progress(self) -> tuple[tuple[int, int], ...]:
        """(slot, chunks that have come) of every slot."""
        return tuple(enumerate(self._received.sum(axis=1).tolist()))


class Closing(Struct, frozen=True):
    """A chunk that closes, and the tokens in its sum."""

    chunk: int
    tokens: int


def _planned_tokens(slots: Sequence[Slot], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """[slots, chunks] tokens."""
    planned = np.zeros((len(slots), len(chunks)), np.int64)
    for row, slot in zip(planned, slots, strict=True):
        for weight in slot.weights:
            row[(chunks >= weight.first) & (chunks < weight.stop)] = weight.tokens
    return planned
