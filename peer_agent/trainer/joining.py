"""From a run's address to a machine that trains there: what is checked first, cheapest things first."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits, narrowed
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Problem
from peer_agent.relay.place import Place
from peer_agent.site.agent_version import difference, offer_of
from peer_agent.site.credential import RunAccess, site_of
from peer_agent.site.enrolment import Enrolment, access_for
from peer_agent.site.machine_control import MachineControl
from peer_agent.site.run_facts import run_preflight
from peer_agent.trainer.collaboration import Collaboration

Way = TypeVar("Way")


class Prepared(NamedTuple):
    """A run that this machine fits into, and may join."""

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
    """Train until the run is finished, or somebody asks to leave; where the machine's owner wants it, in another run.

    The rest as of `run_trainer`. Raises Problem.
    """
    owner = MachineControl(leave_request.home, limits, view.tell)
    prepared = await _prepare(run_url, enrolment, leave_request.home, owner, view)
    while True:
        owner.base = narrowed_to(limits, prepared.preflight)
        owner.limits = narrowed(owner.base, owner.wanted.limits)
        owner.needed_bytes = prepared.preflight.memory_bytes or 0
        view.say("Loading torch, which takes some seconds.")
        run_trainer = await asyncio.to_thread(_loaded_trainer)  # loads torch: after the cheap checks
        await run_trainer(
            prepared.access, owner, leave_request, view, publish=publish, place=place, collaboration=collaboration
        )
        if not owner.move_to or leave_request.is_asked:
            return
        prepared = await _move(prepared, leave_request.home, owner, view)


async def _prepare(run_url: str, enrolment: Enrolment, home: Home, owner: MachineControl, view: View) -> Prepared:
    """Raises Problem where the run cannot be joined from here."""
    await compare_versions(run_url, view)
    access = await access_for(home, run_url, enrolment)
    preflight = await run_preflight(access, disk_gb=owner.limits.disk_gb)
    view.preflight(preflight)
    return Prepared(enrolment, access, preflight)


async def _move(before: Prepared, home: Home, owner: MachineControl, view: View) -> Prepared:
    """The run to go on in: the one that the owner named, or where that takes no such machine the one before."""

    async def prepare(url: str, enrolment: Enrolment) -> Prepared:
        return await _prepare(url, enrolment, home, owner, view)

    return await move(before, before.access, before.enrolment, prepare, owner=owner, view=view)


async def moved(access: RunAccess, owner: MachineControl, enrolment: Enrolment, view: View) -> RunAccess:
    """The same of a machine that trains nothing: nothing has to fit."""

    async def enter(url: str, enrolment: Enrolment) -> RunAccess:
        return await access_for(access.home, url, enrolment)

    return await move(access, access, enrolment, enter, owner=owner, view=view)


async def move(
    before: Way,
    access: RunAccess,
    enrolment: Enrolment,
    enter: Callable[[str, Enrolment], Awaitable[Way]],
    *,
    owner: MachineControl,
    view: View,
) -> Way:
    """What leads into the run that the owner named, or `before` where that one cannot be entered."""
    slug, owner.move_to = owner.move_to, ""
    view.tell("moving", f"Moving to the run {slug}.")
    try:
        after = await enter(f"{access.site.url}/runs/{slug}/", replace(enrolment, run=slug, token=""))
    except Problem as problem:
        view.fault(problem.fault)
        owner.could_not = problem.fault.code
        after = before
    view.begin()
    return after


def narrowed_to(limits: Limits, preflight: Preflight) -> Limits:
    """With as many samples at a time as fit."""
    return replace(limits, at_once=preflight.at_once, recomputes=preflight.recomputes)


async def compare_versions(run_url: str, view: View) -> None:
    """Raises Problem E205 where this agent cannot work there."""
    offer = await offer_of(site_of(run_url))
    if offer is not None and (fault := difference(offer)) is not None:
        if fault.code != "E126":
            raise Problem(fault)
        view.newer(fault)


def _loaded_trainer() -> Callable[..., Coroutine[Any, Any, None]]:
    """In a thread, so that Ctrl-C is heard meanwhile."""
    from peer_agent.trainer.process import run_trainer

    return run_trainer
