"""SIGTERM, or a terminal that closes, ends a block as an exception does; while it is taken down, signals wait."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise SystemExit in the block where one of them comes. Outside of the main thread: nothing."""
    with handled(ENDINGS, leave):
        yield


def leave(number: int, _: FrameType | None) -> NoReturn:
    """End with the status that a shell would give: 143 for SIGTERM."""
    raise SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let them and Ctrl-C wait until the block is through."""
    came: set[int] = set()
    with handled((signal.SIGINT, *ENDINGS), lambda number, _: came.add(number)):
        yield
    if came:
        signal.raise_signal(min(came))


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Have signals handled so within the block; Python allows it in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
