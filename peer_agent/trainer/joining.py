"""From a run's address to a machine that trains there: what is checked first, cheapest things first."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Problem, codes
from peer_agent.relay.place import Place
from peer_agent.site.agent_version import difference, offer_of
from peer_agent.site.credential import RunAccess, site_of
from peer_agent.site.enrolment import Enrolment, access_for
from peer_agent.site.machine_control import MachineControl
from peer_agent.site.run_facts import run_preflight
from peer_agent.trainer.collaboration import Collaboration

NOTHING = Preflight(device="")  # is asked of a machine that trains nothing


class Prepared(NamedTuple):
    """A run that this machine may join, and how it fits in."""

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
    prepared = await prepare(run_url, enrolment, leave_request.home, view, disk_gb=limits.disk_gb)
    while True:
        owner.fit(replace(limits, at_once=prepared.preflight.at_once, recomputes=prepared.preflight.recomputes))
        owner.needed_bytes = prepared.preflight.memory_bytes or 0
        view.say(_("Loading PyTorch (a few seconds)…"))
        run_trainer = await asyncio.to_thread(_loaded_trainer)  # loads torch: after the cheap checks
        await run_trainer(
            prepared.access, owner, leave_request, view, publish=publish, place=place, collaboration=collaboration
        )
        if not owner.move_to or leave_request.is_asked:
            return
        prepared = await moved(prepared, owner, view, disk_gb=owner.limits.disk_gb)


async def prepare(run_url: str, enrolment: Enrolment, home: Home, view: View, *, disk_gb: int | None) -> Prepared:
    """`disk_gb`: of data that are kept at most; None of a machine that trains nothing. Raises Problem."""
    await compare_versions(run_url, view)
    access = await access_for(home, run_url, enrolment)
    if disk_gb is None:
        return Prepared(enrolment, access, NOTHING)
    preflight = await run_preflight(access, disk_gb=disk_gb)
    view.preflight(preflight)
    return Prepared(enrolment, access, preflight)


async def moved(before: Prepared, owner: MachineControl, view: View, *, disk_gb: int | None) -> Prepared:
    """The run that the owner named; where that takes no such machine, `before`."""
    slug, owner.move_to = owner.move_to, ""
    access = before.access
    view.tell("moving", _("Moving to the run {run}.").format(run=slug))
    url, enrolment = f"{access.site.url}/runs/{slug}/", replace(before.enrolment, run=slug, token="")
    try:
        after = await prepare(url, enrolment, access.home, view, disk_gb=disk_gb)
    except Problem as problem:
        view.fault(problem.fault)
        owner.could_not = problem.fault.code
        after = before
    view.begin()
    return after


async def compare_versions(run_url: str, view: View) -> None:
    """Raises Problem E205 where this agent cannot work there."""
    offer = await offer_of(site_of(run_url))
    if offer is not None and (fault := difference(offer)) is not None:
        if fault.code != codes.NEWER_AGENT:
            raise Problem(fault)
        view.newer(fault)


def _loaded_trainer() -> Callable[..., Coroutine[Any, Any, None]]:
    """In a thread, so that Ctrl-C is heard meanwhile."""
    from peer_agent.trainer.process import run_trainer

    return run_trainer
