"""Join a run, from opening its address to training until the machine leaves. The cheapest checks come first."""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import logging
import sys
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.display.on_hold import rest
from peer_agent.display.terminal import LiveView
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import translated
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Problem, codes
from peer_agent.publishing.hub_client import check_name
from peer_agent.relay.place import SEEN, Place
from peer_agent.site.credential import RunAccess, site_of
from peer_agent.site.enrolment import Enrolment, access_for
from peer_agent.site.facts import difference, offer_of, run_preflight
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.collaboration import Collaboration
from peer_agent.trainer.hub_publisher import HubPublisher, hub_token
from peer_agent.trainer.observer import Observer

log = logging.getLogger(__name__)

LOG = "agent.log"
NOTHING = Preflight(device="")  # the preflight of a machine that does not train


class Prepared(NamedTuple):
    """A run that this machine may join, and the results of the checks."""

    enrolment: Enrolment
    access: RunAccess
    preflight: Preflight


async def join_run(
    run_url: str,
    enrolment: Enrolment,
    limits: Limits,
    leave_request: LeaveRequest,
    *,
    view: View,
    publish: str = "",
    place: Place | None = None,
    collaboration: Collaboration | None = None,
) -> None:
    """Join a run and train until the run ends or the machine must leave. If the owner moves the machine to another run,
    train there next. Raises Problem if the machine may not join or cannot continue.
    """
    owner = MachineControl(leave_request.home, limits, view.tell)
    prepared = await prepare(run_url, enrolment, leave_request.home, view, disk_gb=limits.disk_gb)
    while True:
        owner.fit(replace(limits, at_once=prepared.preflight.at_once, recomputes=prepared.preflight.recomputes))
        owner.needed_bytes = prepared.preflight.memory_bytes or 0
        view.say(_("Loading PyTorch (a few seconds)…"))
        await asyncio.to_thread(importlib.import_module, "torch")  # in a thread, so that Ctrl-C still works
        try:
            await run_trainer(
                prepared.access, owner, leave_request, view, publish=publish, place=place, collaboration=collaboration
            )
        except Problem as problem:
            if problem.fault.code != codes.RESTARTED or collaboration is not None:
                raise
            view.fault(problem.fault)
            prepared = await _prepare_again(prepared, prepared.access.slug, view, disk_gb=owner.limits.disk_gb)
            continue
        if not owner.move_to or leave_request.is_asked:
            return
        prepared = await moved(prepared, owner, view, disk_gb=owner.limits.disk_gb)


async def prepare(run_url: str, enrolment: Enrolment, home: Home, view: View, *, disk_gb: int | None) -> Prepared:
    """Check whether this machine may join a run, and raise Problem if not. `disk_gb`: the limit on cached data, or None
    to skip the preflight for a machine that will not train.
    """
    await compare_versions(run_url, view)
    access = await access_for(home, run_url, enrolment)
    if disk_gb is None:
        return Prepared(enrolment, access, NOTHING)
    preflight = await run_preflight(access, disk_gb=disk_gb)
    view.preflight(preflight)
    return Prepared(enrolment, access, preflight)


async def moved(before: Prepared, owner: MachineControl, view: View, *, disk_gb: int | None) -> Prepared:
    """Prepare to join the run to which the owner is moving this machine. Return `before` if it cannot join that run."""
    slug, owner.move_to = owner.move_to, ""
    view.tell("moving", _("Moving to the run {run}.").format(run=slug))
    try:
        return await _prepare_again(before, slug, view, disk_gb=disk_gb)
    except Problem as problem:
        view.fault(problem.fault)
        owner.could_not = problem.fault.code
        return before


async def _prepare_again(before: Prepared, slug: str, view: View, *, disk_gb: int | None) -> Prepared:
    """Prepare to join another run on the same site, or to rejoin this one, and reset the view. Raises Problem if the
    machine may not join.
    """
    access, enrolment = before.access, replace(before.enrolment, run=slug, token="")
    try:
        return await prepare(f"{access.site.url}/runs/{slug}/", enrolment, access.home, view, disk_gb=disk_gb)
    finally:
        view.begin()


async def compare_versions(run_url: str, view: View) -> None:
    """Raise Problem E205 if this agent and the site are incompatible. Show a notice if the site offers a newer
    agent.
    """
    offer = await offer_of(site_of(run_url))
    if offer is not None and (fault := difference(offer, site_of(run_url))) is not None:
        if fault.code != codes.NEWER_AGENT:
            raise Problem(fault)
        view.newer(fault)


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
    """Train until the run has finished or the machine must leave.

    If the machine must pause, leave the run and rejoin it later. Also return when `owner` moves the machine to another
    run. Raises Problem on a permanent error. `publish`: the Hub repository to publish to, or "". `place`: where others
    may dial this machine.
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
    elif view.used:
        view.say(view.used)


async def _work(agent: Agent, leave_request: LeaveRequest) -> None:
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
    """Free a replica's memory while this machine is paused, including memory that the allocator has cached."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # the C library is not GNU's
            ctypes.CDLL(None).malloc_trim(0)


def _publisher(agent: Agent, repository: str) -> HubPublisher:
    """Return a publisher. Raises Problem E348 if the repository's name is not valid, or E353 if there is no Hub token.
    Both are raised at once, while the user is still at the terminal.
    """
    check_name(repository)
    return HubPublisher(agent.home, agent.access, repository, hub_token(), agent.view)


@contextlib.contextmanager
def _shown(view: View, home: Home) -> Iterator[None]:
    with view.live(home.folder / LOG) if isinstance(view, LiveView) else contextlib.nullcontext():
        yield


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log an error in a background task that watches the machine or updates the display. Training goes on."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the view stands still", exc_info=error)
