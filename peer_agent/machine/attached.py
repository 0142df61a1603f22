"""Leave with whoever started this process: its standard input is a pipe of theirs, which ends with them."""

import contextlib
import os
import threading
from collections.abc import Callable


def on_end_of_input(leave: Callable[[], None]) -> None:
    """Call `leave`, in a thread of its own, once standard input has ended. Nothing else may read it meanwhile."""
    threading.Thread(target=_wait, args=(leave,), daemon=True).start()


def _wait(leave: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # one that cannot be read has ended, too
        while os.read(0, 4096):  # not the buffered stream: its lock would be held when the interpreter ends
            pass
    leave()
