"""How an agent is asked to leave, gently and at once the second time."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem

FINISH_S = 60.0  # for the step that is being made; then it is left to the others
WATCH_S = 0.5
FILE = "leave"  # in the home of an agent that is asked to go


class LeaveRequest:
    """Who wants this process to leave. `gently` is there from when there is something that could be finished."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.folder / FILE
        self.gently: Callable[[], None] | None = None
        self.is_asked = False

    def ask(self, cancel: Callable[[], object], *, now: bool = False) -> None:
        """Finish and leave. Asked a second time, or where there is nothing to finish: leave at once."""
        if self.gently is None or self.is_asked or now:
            cancel()
        else:
            self.is_asked = True
            self.gently()

    async def watch(self, cancel: Callable[[], object]) -> None:
        """Hear what `request_leave` asks in another process."""
        await asyncio.to_thread(self._take)  # asked of an agent that is gone
        while True:
            await asyncio.sleep(WATCH_S)
            asked = await asyncio.to_thread(self._take)
            if asked:
                self.ask(cancel, now=asked == "now")

    def _take(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            asked = self.path.read_text()
            self.path.unlink()
            return asked
        return ""


class Unattended(ThreadPoolExecutor):
    """Nobody waits for its threads in the end: one may be in a download or a gradient, and cannot be stopped."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().shutdown(wait=False, cancel_futures=True)


def request_leave(home: Home, *, now: bool, patience_s: float, pause_s: float = 0.1) -> int:
    """Ask the agent that works in `home` to leave, and wait until it has; its process.

    Raises Problem E116 where none works there, E117 where it stays.
    """
    holder = home.holder()
    if holder is None:
        raise Problem.of("E116", home=home.folder)
    home.write(FILE, b"now" if now else b"leave")
    until = time.monotonic() + patience_s
    while home.holder() == holder:
        if time.monotonic() > until:
            raise Problem.of("E117", pid=holder, seconds=round(patience_s))
        time.sleep(pause_s)
    _forget_request(home.folder / FILE)
    return holder


def _forget_request(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def on_end_of_input(leave: Callable[[], None]) -> None:
    """Call `leave`, in a thread of its own, once standard input has ended: the pipe of whoever started this process.

    Nothing else may read it meanwhile.
    """
    threading.Thread(target=_wait, args=(leave,), daemon=True).start()


def _wait(leave: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # one that cannot be read has ended, too
        while os.read(0, 4096):  # not the buffered stream: its lock would be held when the interpreter ends
            pass
    leave()
