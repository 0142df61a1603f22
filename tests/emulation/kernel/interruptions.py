"""SIGTERM ends a block as an exception does; while a block is taken down, signals wait."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

ENDINGS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Raise SystemExit in the block where SIGTERM comes. Outside of the main thread: nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(number: int, _: FrameType | None) -> NoReturn:
    """What SIGTERM does: 143, as a shell would say."""
    raise SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is through."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
