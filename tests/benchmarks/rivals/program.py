"""The dialogue between a rival's peer and the benchmark: lines of JSON over pipes, not over emulated links.

This module runs in the rival's environment, so it imports none of our code.
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
    """The interface that a rival's averager must offer."""

    def vectors(self) -> Sequence[values.Vector]:
        """Return the arrays to average. The benchmark fills the arrays before a round and reads them after it."""

    def average(self) -> dict[str, Any]:
        """Average once with all peers. Return `began` and `ended` (monotonic clock), and `group`, the number of
        peers."""

    def close(self) -> None:
        """Stop everything that was started."""


def converse(build: Callable[[dict[str, Any]], tuple[Averager, dict[str, Any]]]) -> None:
    """Build the averager from the program's one argument, report its addresses, then follow commands until the input
    ends."""
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
    """Follow one command: `fill SEED`, `spoil nan|x1000|none`, `average`, `check SEED`, or `look SEED`."""
    match words:
        case ["fill", seed]:
            values.fill(averager.vectors(), int(seed), values.shift_of(asked["index"], asked["contributors"]))
            answer({})
        case ["average"]:
            answer(averager.average())
        case ["check", seed]:
            mean = values.mean_shift(asked["contributors"])
            answer({"right": values.right_part(averager.vectors(), int(seed), mean)})
        case ["spoil", kind]:
            values.spoil(averager.vectors(), kind)
            answer({})
        case ["look", seed]:
            answer(values.beside_mean(averager.vectors(), int(seed), values.mean_shift(asked["contributors"])))


def answer(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)


def leave(number: int, _: object) -> NoReturn:
    """Exit on a signal just as after the last command, so that child processes also end."""
    raise SystemExit(128 + number)
