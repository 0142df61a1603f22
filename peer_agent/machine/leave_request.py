"""Requests that the agent leave. After the first, the agent finishes its step; after the second, it ends at once."""

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

FINISH_S = 60.0  # how long to work on the current step before leaving it to other machines
WATCH_S = 0.5
FILE = "leave"  # written to the agent's home to ask it to leave


class LeaveRequest:
    """Handles requests that this agent leave. `gently` ends the current work; it is None if there is no work."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.folder / FILE
        self.gently: Callable[[], None] | None = None
        self.is_asked = False

    def ask(self, cancel: Callable[[], object], *, now: bool = False) -> None:
        """Ask the agent to finish its work and leave.

        Call `cancel` instead on a second request, if `now` is True, or if the agent has no work to finish.
        """
        if self.gently is None or self.is_asked or now:
            cancel()
        else:
            self.is_asked = True
            self.gently()

    async def watch(self, cancel: Callable[[], object]) -> None:
        """Watch for requests that `request_leave` in another process writes to the home."""
        await asyncio.to_thread(self._take)  # discard a request that was meant for an earlier agent
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
    """An executor that does not wait for its threads at exit, because downloads and computations cannot be stopped."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().shutdown(wait=False, cancel_futures=True)


def request_leave(home: Home, *, now: bool, patience_s: float, pause_s: float = 0.1) -> int:
    """Ask the agent in `home` to leave, and wait until it has. Return its process id. Raises Problem E116 if no agent
    is running there, E117 if it has not left after `patience_s`.
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
    """Call `leave` in a thread when the parent closes the pipe to standard input. Nothing else may read that input."""
    threading.Thread(target=_wait, args=(leave,), daemon=True).start()


def _wait(leave: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # an unreadable pipe counts as ended
        while os.read(0, 4096):  # not `sys.stdin`, whose lock would be held when the interpreter ends
            pass
    leave()
