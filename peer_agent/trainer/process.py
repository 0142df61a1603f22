"""One agent in one run, from the first word to the last: its work, what is shown of it, how it is asked to go."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from peer_agent.display.lines import View
from peer_agent.display.terminal import LiveView
from peer_agent.machine.home import Home
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.publishing.hub.names import check_name
from peer_agent.relay.place import SEEN, Place
from peer_agent.site.credential import RunAccess
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.collaboration import Collaboration
from peer_agent.trainer.hub_publisher import HubPublisher, hub_token
from peer_agent.trainer.observer import Observer

log = logging.getLogger(__name__)
LOG = "agent.log"


async def run_trainer(
    access: RunAccess,
    limits: Limits,
    leave_request: LeaveRequest,
    view: View,
    *,
    publish: str = "",
    place: Place | None = None,
    collaboration: Collaboration | None = None,
) -> None:
    """Train until the run is finished, or until somebody asks to leave; `publish`: a repository, or empty.

    `place`: where others may dial this machine. `collaboration`: where somebody else's loop computes. Raises Problem.
    """
    if place is not None:
        view.say(SEEN)
    agent = Agent(access.home, access, limits, view, place)
    agent.jobs.collaboration = collaboration
    agent.publisher = _publisher(agent, publish) if publish else None
    leave_request.gently = agent.finish
    with _shown(view, access.home):
        observing = asyncio.create_task(Observer(agent).run())
        observing.add_done_callback(_tell_failure)
        try:
            await agent.run()
            if agent.publisher is not None:
                await agent.publisher.finish()
        finally:
            observing.cancel()
    if leave_request.is_asked:
        view.farewell()


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
