"""Decide when a reducer closes a chunk: it averages the slots that have arrived, and accepts no others (rules 7, 8).

A chunk closes once enough tokens have arrived, and every slot has sent it, been dropped or missed the deadline.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import PlanHead, PlannedSpan, Slot
from peer_agent.protocol.plan import QUORUM_PERCENT
from peer_agent.protocol.timing import batch_chunks, due_s, planned_s


class Coverage:
    """Tracks which slots have sent each chunk of a reducer's spans. Two-dimensional arrays are [slots, chunks]."""

    def __init__(self, slots: Sequence[Slot], spans: Iterable[PlannedSpan]) -> None:
        ranges = [range(span.first, span.stop) for span in spans]
        self.chunks = [chunk for part in ranges for chunk in part]
        self._borders = np.cumsum([len(part) for part in ranges])  # the column after each span
        self._codecs = [slot.codec for slot in slots]
        self._column = {chunk: column for column, chunk in enumerate(self.chunks)}
        self._planned = _planned_tokens(slots, np.array(self.chunks, np.int64))
        self._received = np.zeros(self._planned.shape, np.bool_)
        self._dropped = np.zeros(len(slots), np.bool_)
        self._whole = self._planned.sum(axis=0)
        self._came = np.zeros(len(self.chunks), np.int64)  # tokens
        self._awaited = (self._planned > 0).sum(axis=0)  # slots
        self._came_s = np.full(self._planned.shape, np.inf, np.float32)  # seconds from the plan to the chunk's arrival
        self._moved_s = np.zeros(len(slots))  # when each slot's last chunk arrived
        self._enough_s = np.full(len(self.chunks), np.inf)  # when enough tokens had arrived
        self._closed = np.zeros(len(self.chunks), np.bool_)
        self._asked = np.maximum(self._awaited_of(slice(None)), 1)  # chunks expected from each slot
        self._left = self._awaited_of(slice(None))  # of these, chunks that have neither arrived nor closed

    def asks_for(self, slot: int, chunk: int) -> bool:
        """Return True if this reducer should get the chunk from the slot, and has it already or still accepts it."""
        column = self._column.get(chunk)
        if column is None or not 0 <= slot < len(self._dropped) or not self._planned[slot, column]:
            return False
        return bool(self._received[slot, column] or not (self._dropped[slot] or self._closed[column]))

    def has(self, slot: int, chunk: int) -> bool:
        return bool(self._received[slot, self._column[chunk]])

    def add(self, slot: int, chunk: int, since_plan_s: float = 0.0) -> list["Closing"]:
        """Record that a slot's chunk is in the sum. Return the chunk if it is now complete and must be closed."""
        column = self._column[chunk]
        self._received[slot, column] = True
        self._came_s[slot, column] = self._moved_s[slot] = since_plan_s
        self._came[column] += self._planned[slot, column]
        self._awaited[column] -= 1
        self._left[slot] -= 1
        if self._has_quorum(column):
            self._enough_s[column] = min(self._enough_s[column], since_plan_s)
        return self._close([column])

    @property
    def dropped(self) -> int:
        """The number of dropped slots."""
        return int(self._dropped.sum())

    def is_dropped(self, slot: int) -> bool:
        return bool(self._dropped[slot])

    def drop(self, slot: int) -> list["Closing"]:
        """Stop waiting for a slot's missing chunks. Return the chunks that now close without the slot."""
        if not 0 <= slot < len(self._dropped) or self._dropped[slot]:
            return []
        self._dropped[slot] = True
        missing = ~self._is_settled()[slot]
        self._awaited -= missing
        return self._close(np.flatnonzero(missing).tolist())

    def close_late(self, plan: PlanHead, since_plan_s: float) -> list["Closing"]:
        """Close and return the chunks whose deadline has passed, if enough of their tokens have arrived."""
        if not plan.sigma:
            return []
        places = np.flatnonzero(~self._closed & (self._enough_s < since_plan_s))
        due = due_s(plan, places, len(self.chunks), self._enough_s[places], self._batch(plan))
        late = places[due <= since_plan_s]
        self._awaited[late] = 0
        return self._close(late.tolist())

    def _batch(self, plan: PlanHead) -> int:
        return batch_chunks(set(self._codecs), plan.chunk_elements)

    def behind(self, plan: PlanHead) -> tuple[int, ...]:
        """Return the slots without which more consecutive chunks of a span were closed than their batches have.

        Leave out dropped slots. O(slots * chunks).
        """
        missed = (self._planned > 0) & ~self._received & self._closed & ~self._dropped[:, None]
        return tuple(
            slot
            for slot in np.flatnonzero(missed.any(axis=1)).tolist()
            if self._longest_row(missed[slot]) > batch_chunks([self._codecs[slot]], plan.chunk_elements)
        )

    def _longest_row(self, flags: NDArray[np.bool_]) -> int:
        """Return the length of the longest row of True within a span. `flags`: one for each chunk."""
        edges = np.flatnonzero(np.diff(np.insert(flags, self._borders, False), prepend=False))
        return int(np.max(edges[1::2] - edges[::2], initial=0))

    def lateness(self, plan: PlanHead) -> tuple[float, ...]:
        """Return the lateness of each slot's latest chunk, as a fraction of the plan's time.

        A missing chunk counts as sigma late.
        """
        if not plan.sigma:
            return (0.0,) * len(self._dropped)
        places = np.arange(len(self.chunks))
        since_s = np.maximum(planned_s(plan, places, len(places), self._batch(plan)), self._enough_s)
        late = (self._came_s - since_s) / np.maximum(plan.duration_s, self._enough_s)
        late = np.where(self._received, late, plan.sigma) * (self._planned > 0)
        return tuple(np.clip(late.max(axis=1), 0.0, 1.0).tolist())

    def _close(self, columns: Iterable[int]) -> list["Closing"]:
        closing = []
        for column in columns:
            has_quorum = self._has_quorum(column)
            if has_quorum and not self._awaited[column] and not self._closed[column]:
                self._left -= self._awaited_of([column])
                self._closed[column] = True
                closing.append(Closing(self.chunks[column], int(self._came[column])))
        return closing

    def is_ahead(self, slot: int, least: float, moved_since_s: float, scheduled: float = 0.0) -> bool:
        """Return True if a slot is more than `least` ahead of the slowest active slot. O(slots).

        A slot is active if it has sent something since `moved_since_s` (seconds since the plan). `least` and
        `scheduled` are fractions of a slot's chunks. A slot that has sent no more than its `scheduled` fraction is
        never ahead.
        """
        part = 1 - self._left / self._asked
        moving = part[self._moved_s >= moved_since_s]
        return bool(len(moving) and part[slot] > max(moving.min() + least, scheduled))

    def _awaited_of(self, columns: Any) -> NDArray[np.int64]:
        """Return, for each slot, how many of these chunks are planned and have neither arrived nor closed."""
        missing = (self._planned[:, columns] > 0) & ~self._received[:, columns] & ~self._closed[columns]
        count: NDArray[np.int64] = missing.sum(axis=1)
        return count

    def _has_quorum(self, column: int) -> bool:
        tokens = int(self._came[column])
        return bool(tokens and 100 * tokens >= QUORUM_PERCENT * int(self._whole[column]))

    def _is_settled(self) -> NDArray[np.bool_]:
        """Return an array [slots, chunks] that is True where a chunk is no longer waiting for a slot."""
        settled: NDArray[np.bool_] = (self._planned == 0) | self._received | self._closed
        return settled

    def is_complete(self, span: PlannedSpan) -> bool:
        first = self._column[span.first]
        return bool(self._closed[first : first + span.stop - span.first].all())

    def included(self, span: PlannedSpan) -> tuple[Included, ...]:
        """Divide a complete span into ranges of chunks that average the same slots. Return the ranges with their slots.

        A chunk's average includes every slot that sent the chunk.
        """
        ranges = []
        for slots, group in groupby(range(span.first, span.stop), key=self._slots_in):
            members = list(group)
            ranges.append(Included(members[0], members[-1] + 1, slots))
        return tuple(ranges)

    def _slots_in(self, chunk: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self._received[:, self._column[chunk]]).tolist())

    def received(self, slot: int) -> tuple[int, ...]:
        """Return the chunks that a contributor need not send: those received, and those closed without it (rule 19)."""
        done = self._received[slot] | self._closed
        return tuple(self.chunks[column] for column in np.flatnonzero(done).tolist())

    def progress(self) -> tuple[tuple[int, int], ...]:
        """Return, for each slot, how many chunks have arrived or are no longer expected."""
        return tuple(enumerate(self._is_settled().sum(axis=1).tolist()))


class Closing(Struct, frozen=True):
    """A chunk to close, and the number of tokens in its sum."""

    chunk: int
    tokens: int


def _planned_tokens(slots: Sequence[Slot], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the planned tokens as an array [slots, chunks]."""
    planned = np.zeros((len(slots), len(chunks)), np.int64)
    for row, slot in zip(planned, slots, strict=True):
        for weight in slot.weights:
            row[(chunks >= weight.first) & (chunks < weight.stop)] = weight.tokens
    return planned
