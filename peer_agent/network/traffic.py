"""Bytes that this process has moved over links and downloads, counted where they go into and come out of sockets."""

import threading
import time
from collections import deque

WINDOW_S = 5.0


class Traffic:
    """Two sums. Counted from the loop and from threads."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def add(self, *, sent: int = 0, received: int = 0) -> None:
        """So many bytes more."""
        with self._lock:
            self.sent += sent
            self.received += received


TRAFFIC = Traffic()


class Rates:
    """Megabits per second, up and down, over the last `WINDOW_S` seconds."""

    def __init__(self, traffic: Traffic = TRAFFIC) -> None:
        self._traffic = traffic
        self._marks: deque[tuple[float, int, int]] = deque()

    def read(self, now: float | None = None) -> tuple[float, float]:
        """The rates at `now`, a monotonic time; to be asked about once a second."""
        now = time.monotonic() if now is None else now
        self._marks.append((now, self._traffic.sent, self._traffic.received))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW_S:
            self._marks.popleft()
        began, sent, received = self._marks[0]
        passed_s = now - began
        if passed_s <= 0:
            return 0.0, 0.0
        scale = 8 / 1e6 / passed_s
        return (self._traffic.sent - sent) * scale, (self._traffic.received - received) * scale
