"""How a peer of a rival speaks with the benchmark: lines of JSON, over pipes that no link is charged for.

Runs in the rival's environment, so it knows nothing of ours.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from tests.benchmarks.rivals import values

LEAVE_S = 10.0


class Averager(Protocol):
    """What a rival is here."""

    def vectors(self) -> Sequence[values.Vector]:
        """The values, to be written into and read."""

    def average(self) -> dict[str, Any]:
        """Once, with everybody: `began` and `ended` by this machine's monotonic clock, `group` the peers in it."""

    def close(self) -> None:
        """End what was started."""


def converse(build: Callable[[dict[str, Any]], tuple[Averager, dict[str, Any]]]) -> None:
    """Build from the one argument, say what others need to know, then obey until there is nobody to obey."""
    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, leave)
    averager, known = build(asked)
    answer(known)
    try:
        for line in sys.stdin:
            obey(averager, asked, line.split())
    finally:
        in_time = threading.Timer(LEAVE_S, os._exit, (1,))
        in_time.daemon = True
        in_time.start()
        averager.close()


def obey(averager: Averager, asked: dict[str, Any], words: list[str]) -> None:
    """`fill SEED`, `average`, `check SEED`."""
    match words:
        case ["fill", seed]:
            values.fill(averager.vectors(), int(seed), values.shift_of(asked["index"], asked["contributors"]))
            answer({})
        case ["average"]:
            answer(averager.average())
        case ["check", seed]:
            mean = values.mean_shift(asked["contributors"])
            answer({"right": values.right_part(averager.vectors(), int(seed), mean)})


def answer(said: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(said), flush=True)


def leave(number: int, _: object) -> NoReturn:
    """As after the last line, so that children are ended."""
    raise SystemExit(128 + number)
