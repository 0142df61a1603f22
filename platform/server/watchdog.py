"""A watchdog that restarts this process if its event loop hangs.

A process with a hung loop keeps its sockets and database connections open, so agents and other processes would wait for
it. After a restart, its agents reconnect at once, and any process can claim its runs.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from config.metrics import LOOP_LAG_S
from peer_agent.protocol.errors import Fault

log = logging.getLogger(__name__)

STUCK_S = 5.0  # the process restarts after this long without a turn of the loop; a host's claim lasts 10 s
BEAT_S = 0.5


async def watch_loop(stop: asyncio.Event, give_up: Callable[[], None] | None = None) -> None:
    """Count the event loop's turns until `stop`. A thread calls `give_up` if the loop takes no turn for `STUCK_S`."""
    beats = Beats()
    thread = threading.Thread(target=_watch, args=(beats, give_up or restart), name="watchdog", daemon=True)
    thread.start()
    try:
        while not stop.is_set():
            beats.count += 1
            due = time.monotonic() + BEAT_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), BEAT_S)
            LOOP_LAG_S.observe(max(0.0, time.monotonic() - due))
    finally:
        beats.over.set()


class Beats:
    """The number of turns that a loop has taken, and the thread that it runs in."""

    def __init__(self) -> None:
        self.count = 0
        self.over = threading.Event()
        self.thread = threading.get_ident()


def _watch(beats: Beats, give_up: Callable[[], None]) -> None:
    """Call `give_up` after too many checks in a row without a turn of the loop in between.

    Checks are counted rather than seconds, because this thread makes none while the whole process is stopped.
    """
    known, missed = -1, 0
    while not beats.over.wait(BEAT_S):
        missed = missed + 1 if beats.count == known else 0
        known = beats.count
        if missed * BEAT_S >= STUCK_S:
            log.critical("%s\n%s", Fault.of("E466", seconds=f"{STUCK_S:g}"), _stack_of(beats.thread))
            give_up()
            return


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)  # noqa: SLF001 (documented; the name is a warning only)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def restart() -> None:
    """Replace this process with a new one that has the same arguments, PID, input and output.

    Sockets, files and database connections close, and children end because their input closes. Windows has no such
    call; there, the process just ends, and the program that started it must start it again.
    """
    logging.shutdown()
    if os.name == "posix":
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (the command that started this process)
    os._exit(70)
