"""Pauses of this machine, detected by heartbeats in this process and in the browser, so that tests do not blame the
site.

The heartbeats do not depend on the tested code. If one of them is late, nothing else can be expected to be on time.
"""

import threading
import time
from collections.abc import Sequence
from typing import Self

from playwright.sync_api import Browser

BEAT_S = 0.05
LATE_S = 0.05  # seconds after the heartbeat was due; clocks alone cause less

Span = tuple[float, float]  # start and end, in seconds of UTC

HEART = f"""
  window.late = [];
  let last = Date.now();
  setInterval(() => {{
    const now = Date.now();
    if (now - last > {1000 * (BEAT_S + LATE_S)}) window.late.push([last / 1000 + {BEAT_S}, now / 1000]);
    last = now;
  }}, {1000 * BEAT_S});
"""


class Heartbeat:
    """Heartbeats in a thread of this process and in an empty page of the browser."""

    def __init__(self, browser: Browser) -> None:
        self.late: list[Span] = []
        self.page = browser.new_context().new_page()
        self.page.evaluate(HEART)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.page.context.close()

    def _beat(self) -> None:
        last = time.time()
        while not self._over.wait(BEAT_S):
            now = time.time()
            if now - last > BEAT_S + LATE_S:
                self.late.append((last + BEAT_S, now))
            last = now

    def stalls(self) -> list[Span]:
        there = [(start, end) for start, end in self.page.evaluate("window.late")]
        return merged([*self.late, *there])


def merged(spans: Sequence[Span]) -> list[Span]:
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(end, whole[-1][1])
        else:
            whole.append((start, end))
    return whole


def stalled_s(stalls: Sequence[Span], start: float, end: float) -> float:
    return sum(max(0.0, min(end, late) - max(start, began)) for began, late in stalls)
