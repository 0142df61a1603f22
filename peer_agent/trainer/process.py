"""One agent in one run, from the first word to the last: its work, what is shown of it, how it is asked to go."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import sys
from collections.abc import Iterator

import torch

from peer_agent.display.lines import View
from peer_agent.display.on_hold import rest
from peer_agent.display.terminal import LiveView
from peer_agent.machine.home import Home
from peer_agent.machine.language import translated
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.publishing.hub.names import check_name
from peer_agent.relay.place import SEEN, Place
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.collaboration import Collaboration
from peer_agent.trainer.hub_publisher import HubPublisher, hub_token
from peer_agent.trainer.observer import Observer

log = logging.getLogger(__name__)
LOG = "agent.log"


async def run_trainer(
    access: RunAccess,
    owner: MachineControl,
    leave_request: LeaveRequest,
    view: View,
    *,
    publish: str = "",
    place: Place | None = None,
    collaboration: Collaboration | None = None,
) -> None:
    """Train until the run is finished, or until somebody asks to leave; `publish`: a repository, or empty.

    `owner`: what the owner wants of this machine; where it is to rest it leaves the run until it may work again, and
    where it is to move this returns. `place`: where others may dial it. `collaboration`: where somebody else's loop
    computes. Raises Problem.
    """
    if place is not None:
        view.say(translated(SEEN))
    with _shown(view, access.home):
        watching = asyncio.create_task(owner.watch())
        watching.add_done_callback(_tell_failure)
        try:
            while True:
                agent = Agent(access.home, access, owner, view, place)
                agent.jobs.collaboration = collaboration
                agent.publisher = _publisher(agent, publish) if publish else None
                await _work(agent, leave_request)
                del agent
                is_over = leave_request.is_asked or view.run_state == "finished"
                if is_over or not owner.rest:
                    break
                await asyncio.to_thread(free_memory)
                if not await rest(access, owner, leave_request, view):
                    break
        finally:
            watching.cancel()
    if leave_request.is_asked or owner.is_to_finish:
        view.farewell()


async def _work(agent: Agent, leave_request: LeaveRequest) -> None:
    """Until the agent ends, for whatever reason."""
    leave_request.gently = agent.finish
    observing = asyncio.create_task(Observer(agent).run())
    observing.add_done_callback(_tell_failure)
    try:
        await agent.run()
        if agent.publisher is not None and not agent.owner.rest:
            await agent.publisher.finish()
    finally:
        observing.cancel()


def free_memory() -> None:
    """What a replica took is free for others while this machine rests, also where the system's allocator kept it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # of another C library than GNU's
            ctypes.CDLL(None).malloc_trim(0)


def _publisher(agent: Agent, repository: str) -> HubPublisher:
    """Raises Problem E348, E353: before any work, since the person is still there."""
    check_name(repository)
    return HubPublisher(agent.home, agent.access, repository, hub_token(), agent.view)


@contextlib.contextmanager
def _shown(view: View, home: Home) -> Iterator[None]:
    with view.live(home.folder / LOG) if isinstance(view, LiveView) else contextlib.nullcontext():
        yield


def _tell_failure(task: asyncio.Task[None]) -> None:
    """What is shown may fail; the work goes on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the view stands still", exc_info=error)
