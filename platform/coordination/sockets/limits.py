"""Limits on unauthenticated sockets, on takeovers of a machine's session, and on a peer's messages and bytes."""

from collections import OrderedDict, deque
from typing import Any, Generic, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from peer_agent.protocol.credentials import Role

T = TypeVar("T")

STRANGERS = 500  # most unauthenticated sockets per process; any more displace the oldest
TAKEOVERS = 6  # most session takeovers within TAKEOVERS_S; even a bad network causes fewer
TAKEOVERS_S = 60.0
REST_S = 60.0  # how long a refused agent must wait before it connects again
KNOWN = 10_000  # machines remembered, so that a new socket resets neither budget nor takeovers
PROVED = "manyhands.proved"  # an ASGI extension: a function to call with the link's owner


class Strangers(Generic[T]):
    """Sockets that have not authenticated yet, oldest first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def enter(self, stranger: T) -> T | None:
        """Add a socket. If there are now too many, remove the oldest and return it for the caller to close."""
        self._waiting[stranger] = None
        return self._waiting.popitem(last=False)[0] if len(self._waiting) > STRANGERS else None

    def leave(self, stranger: T) -> None:
        self._waiting.pop(stranger, None)


class Takeovers:
    """Recent takeovers of each machine's session in a run. `now` is a monotonic time in seconds."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], deque[float]] = LRUCache(KNOWN)

    def count(self, peer: str, run: str, now: float) -> bool:
        """Count a takeover. If there have been too many, return True and reset the count."""
        times = self._known.setdefault((peer, run), deque())
        times.append(now)
        while now - times[0] > TAKEOVERS_S:
            times.popleft()
        if len(times) <= TAKEOVERS:
            return False
        del self._known[peer, run]
        return True


def say_proved(scope: dict[str, Any], owner: str) -> None:
    """Tell the ASGI server that the link belongs to `owner`. If it supports this, it then accepts longer messages."""
    said = (scope.get("extensions") or {}).get(PROVED)
    if said is not None:
        said(owner)


# Rate limit on one machine's messages to a run's host: one token bucket for messages and one for bytes


class Budget(Struct, frozen=True):
    """The rates and sizes of two token buckets: one for messages and one for bytes."""

    messages_per_s: float
    messages: float
    bytes_per_s: float
    bytes: float

    def __str__(self) -> str:
        return f"{self.messages_per_s:.0f} messages or {self.bytes_per_s / 1e6:.0f} MB a second"


# A trainer sends a heartbeat every two seconds, and a report with each unit. After a loss, it sends a hello listing all
# its units, of at most 8 MiB. A relay sends a message for each span and slot of each of its runs; an auxiliary does so
# for a single run.
BUDGETS = {
    Role.TRAINER: Budget(messages_per_s=200, messages=2_000, bytes_per_s=1e6, bytes=64e6),
    Role.AUXILIARY: Budget(messages_per_s=500, messages=5_000, bytes_per_s=2e6, bytes=64e6),
    Role.RELAY: Budget(messages_per_s=2_000, messages=20_000, bytes_per_s=8e6, bytes=256e6),
}
# Each report is written to a row. A machine sends one whenever something changes, and once a minute.
REPORTS = Budget(messages_per_s=1, messages=20, bytes_per_s=4e3, bytes=64e3)


class Allowance:
    """The unused part of a budget. `now` is a monotonic time in seconds."""

    def __init__(self, budget: Budget, now: float) -> None:
        self.budget, self.at = budget, now
        self.messages, self.bytes = budget.messages, budget.bytes

    def spend(self, size: int, now: float) -> bool:
        """Deduct one message of `size` bytes. Return False if that exceeds the budget."""
        passed, self.at = now - self.at, now
        self.messages = min(self.budget.messages, self.messages + passed * self.budget.messages_per_s) - 1
        self.bytes = min(self.budget.bytes, self.bytes + passed * self.budget.bytes_per_s) - size
        return self.messages >= 0 and self.bytes >= 0


class Allowances:
    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], Allowance] = LRUCache(KNOWN)

    def of(self, peer: str, run: str, role: Role, now: float) -> Allowance:
        """Return the machine's allowance in a run. All sockets of the machine share it."""
        full = Allowance(BUDGETS.get(role, BUDGETS[Role.TRAINER]), now)
        return self._known.setdefault((peer, run), full)
