"""How much one machine may say to its run's host: a token bucket of messages, and one of bytes."""

from cachetools import LRUCache
from msgspec import Struct

from peer_agent.protocol.credentials import Role


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
REST_S = 60.0  # for whoever said more
MOST = 10_000  # machines that are remembered, so that a new socket is no new budget


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
    """Those of all machines that were here lately."""

    def __init__(self) -> None:
        self._known: LRUCache[tuple[str, str], Allowance] = LRUCache(MOST)

    def of(self, peer: str, run: str, role: Role, now: float) -> Allowance:
        """The same for each socket of a machine in a run."""
        full = Allowance(BUDGETS.get(role, BUDGETS[Role.TRAINER]), now)
        return self._known.setdefault((peer, run), full)
