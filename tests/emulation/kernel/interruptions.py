"""SIGTERM or a closed terminal ends a block as an exception would. Signals that arrive during teardown are held until
it is done."""

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
    """Raise SystemExit in the block if one of the ENDINGS signals arrives. Outside the main thread, do nothing."""
    with handled(ENDINGS, leave):
        yield


def leave(number: int, _: FrameType | None) -> NoReturn:
    """Exit with the status that a shell would report, for example 143 for SIGTERM."""
    raise SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back ENDINGS signals and Ctrl-C until the block ends, then deliver one of them."""
    came: set[int] = set()
    with handled((signal.SIGINT, *ENDINGS), lambda number, _: came.add(number)):
        yield
    if came:
        signal.raise_signal(min(came))


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle some signals with `handler` within the block. Python permits this only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
