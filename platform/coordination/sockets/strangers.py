"""Sockets of strangers, and machines that are here twice."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from cachetools import LRUCache

T = TypeVar("T")

STRANGERS = 500  # sockets of a process that have not proved who they are; the one that takes longest makes room
TAKEOVERS = 6  # of a session in TAKEOVERS_S by another socket of its machine: a network that fails does less
TAKEOVERS_S = 60.0
REST_S = 60.0  # for both, once they were told
KNOWN = 10_000  # machines whose takeovers are counted


class Strangers(Generic[T]):
    """Those that have not proved who they are, the oldest first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def enter(self, stranger: T) -> T | None:
        """Who has to go for it."""
        self._waiting[stranger] = None
        return self._waiting.popitem(last=False)[0] if len(self._waiting) > STRANGERS else None

    def leave(self, stranger: T) -> None:
        """It proved who it is, or went."""
        self._waiting.pop(stranger, None)


class Takeovers:
    """How often the session of a machine in a run went to another socket lately. `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], deque[float]] = LRUCache(KNOWN)

    def count(self, peer: str, run: str, now: float) -> bool:
        """Once more; True where that is too often, and it is counted anew."""
        times = self._known.setdefault((peer, run), deque())
        times.append(now)
        while now - times[0] > TAKEOVERS_S:
            times.popleft()
        if len(times) <= TAKEOVERS:
            return False
        del self._known[peer, run]
        return True
