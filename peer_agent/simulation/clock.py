"""Virtual time: what is due next, and nothing else ever happens."""

import heapq
from collections.abc import Callable
from itertools import count

UPTIME_S = 90_000.0  # a machine's monotonic clock when the run begins: more than a day, as on any machine that stays on


class Clock:
    """A queue of actions by time; those of the same instant run in the order they were asked for."""

    def __init__(self) -> None:
        self.now = UPTIME_S
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay_s` virtual seconds."""
        self.at(self.now + delay_s, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` at a virtual time (now, if that is past)."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._numbers), action))

    def step(self) -> bool:
        """Run the next action. False where there is none."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True
