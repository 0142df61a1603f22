"""What a socket may take: strangers at once, links and takeovers of one machine, messages and bytes of a peer."""

from collections import OrderedDict, deque
from typing import Any, Generic, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from peer_agent.protocol.credentials import Role

T = TypeVar("T")

STRANGERS = 500  # sockets of a process that have not proved who they are; the one that takes longest makes room
TAKEOVERS = 6  # of a session in TAKEOVERS_S by another socket of its machine: a network that fails does less
TAKEOVERS_S = 60.0
REST_S = 60.0  # for both, once they were told
KNOWN = 10_000  # machines whose takeovers are counted
PROVED = "manyhands.proved"  # in the ASGI scope's extensions: a function that takes whose link it is


class Strangers(Generic[T]):
    """Those that have not proved who they are, the oldest first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def enter(self, stranger: T) -> T | None:
        """Who has to go for it."""
        self._waiting[stranger] = None
        return self._waiting.popitem(last=False)[0] if len(self._waiting) > STRANGERS else None

    def leave(self, stranger: T) -> None:
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


def say_proved(scope: dict[str, Any], owner: str) -> None:
    """From now on the server takes longer messages of this socket, and counts it as `owner`'s.

    Does nothing under a server that knows no such extension.
    """
    said = (scope.get("extensions") or {}).get(PROVED)
    if said is not None:
        said(owner)


# How much one machine may say to its host of the run: a token bucket of messages, and one of bytes


class Budget(Struct, frozen=True):
    """What is granted each second, and what may be said at once."""

    messages_per_s: float
    messages: float
    bytes_per_s: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.messages_per_s:.0f} messages or {self.bytes_per_s / 1e6:.0f} MB a second"


# A trainer says a heartbeat each two seconds, a report with each unit, and a hello with all its units after a loss: at
# most 8 MiB. A relay says a word for each span and slot of each of its runs, an auxiliary of one run.
BUDGETS = {
    Role.TRAINER: Budget(messages_per_s=200, messages=2_000, bytes_per_s=1e6, bytes=64e6),
    Role.AUXILIARY: Budget(messages_per_s=500, messages=5_000, bytes_per_s=2e6, bytes=64e6),
    Role.RELAY: Budget(messages_per_s=2_000, messages=20_000, bytes_per_s=8e6, bytes=256e6),
}
# What it says of itself is a row each time: it is said when something changes, or once a minute.
REPORTS = Budget(messages_per_s=1, messages=20, bytes_per_s=4e3, bytes=64e3)
KNOWN = 10_000  # machines that are remembered, so that a new socket is no new budget


class Allowance:
    """What is left of a budget. `now` is in monotonic seconds."""

    def __init__(self, budget: Budget, now: float) -> None:
        self.budget, self.at = budget, now
        self.messages, self.bytes = budget.messages, budget.bytes

    def spend(self, size: int, now: float) -> bool:
        """One message of `size` bytes; False where it is too much."""
        passed, self.at = now - self.at, now
        self.messages = min(self.budget.messages, self.messages + passed * self.budget.messages_per_s) - 1
        self.bytes = min(self.budget.bytes, self.bytes + passed * self.budget.bytes_per_s) - size
        return self.messages >= 0 and self.bytes >= 0


class Allowances:
    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], Allowance] = LRUCache(KNOWN)

    def of(self, peer: str, run: str, role: Role, now: float) -> Allowance:
        """The same for each socket of a machine in a run."""
        full = Allowance(BUDGETS.get(role, BUDGETS[Role.TRAINER]), now)
        return self._known.setdefault((peer, run), full)
