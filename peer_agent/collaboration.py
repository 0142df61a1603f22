"""An API for computing a run's units in your own training loop.

The agent handles data, averaging, updates and catching up.

    from peer_agent.collaboration import collaborate

    with collaborate("https://example.org/runs/a-run/") as collaboration:
        for unit in collaboration.units():
            unit.summed_loss().backward()
            collaboration.step()
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from peer_agent.display.device_code import show_code
from peer_agent.display.lines import View
from peer_agent.machine.hardware import of_packages
from peer_agent.machine.home import Home, home_folder
from peer_agent.machine.leave_request import LeaveRequest, Unattended
from peer_agent.machine.limits import Limits, apply_limits, usual_limits
from peer_agent.protocol.errors import Problem
from peer_agent.site.credential import run_of
from peer_agent.site.enrolment import Enrolment
from peer_agent.trainer.collaboration import Collaboration, compute_units
from peer_agent.trainer.joining import join_run


@contextmanager
def collaborate(
    run_url: str, *, limits: Limits | None = None, home: Path | None = None, view: View | None = None
) -> Iterator[Collaboration]:
    """Join a run for the duration of the `with` block, as `manyhands join` does.

    A new machine must first be approved in a browser. When the block ends normally or is interrupted by Ctrl-C, the
    agent finishes the current step. After any other error, it leaves at once. `home` defaults to the agent's folder on
    this machine, and `view` to plain lines on standard output. Raises Problem if the agent cannot join or fails later.
    """
    if fault := of_packages():
        raise Problem(fault)
    place = Home(home or home_folder(dict(os.environ)))
    view = view or View()
    with place.locked():
        agent = _AgentThread(run_url, limits or usual_limits(), place, view)
        agent.start()
        gently = False
        try:
            yield agent.collaboration
            gently = True
        except KeyboardInterrupt:
            gently = True
            raise
        finally:
            agent.leave(gently=gently)
        if agent.collaboration.error is not None:
            raise agent.collaboration.error


class _AgentThread:
    """An agent that runs in its own thread, while the caller's thread computes the agent's units."""

    def __init__(self, run_url: str, limits: Limits, home: Home, view: View) -> None:
        """Create the thread without starting it.

        Raises Problem E104 or E112 if `run_url` is not a valid http or https address, E305 if it is not a run's
        address.
        """
        self.run_url, self.limits, self.view = run_url, limits, view
        self.collaboration = Collaboration()
        self._enrolment = Enrolment(show=show_code, say=view.say, run=run_of(run_url))
        self._leave_request = LeaveRequest(home)
        self._thread = threading.Thread(target=self._work, name="agent", daemon=True)
        self._began = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cancel: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Lower this process's priority according to `limits`, and start the agent."""
        apply_limits(self.limits)
        self._thread.start()
        self._began.wait()

    def leave(self, *, gently: bool) -> None:
        """Make the agent leave, and wait until it has left.

        If `gently`, first compute the units that the current step still needs from this machine.
        """
        self._ask(now=not gently)
        try:
            if gently:
                compute_units(self.collaboration)
        finally:
            self._ask(now=True)
            self._thread.join()

    def _ask(self, *, now: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the agent's event loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(partial(self._leave_request.ask, self._cancel, now=now))

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._until_left())
        except BaseException as problem:  # noqa: BLE001 (the caller's loop raises any error)
            error = problem
        self.collaboration.end(error)
        self._began.set()  # also if the agent failed before it began

    async def _until_left(self) -> None:
        joining = asyncio.current_task()
        assert joining is not None
        self._loop, self._cancel = asyncio.get_running_loop(), joining.cancel
        self._began.set()
        self._loop.set_default_executor(Unattended())
        watch = asyncio.create_task(self._leave_request.watch(self._cancel))
        try:
            await join_run(
                self.run_url,
                self._enrolment,
                self.limits,
                self._leave_request,
                view=self.view,
                collaboration=self.collaboration,
            )
        except asyncio.CancelledError:
            return
        finally:
            watch.cancel()
