"""From a run's address to a machine that trains there: what is checked first, cheapest things first."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from peer_agent.display.lines import View
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.machine.limits import Limits
from peer_agent.protocol.errors import Problem
from peer_agent.relay.place import Place
from peer_agent.site.agent_version import difference, offer_of
from peer_agent.site.credential import site_of
from peer_agent.site.enrolment import Enrolment, access_for
from peer_agent.site.run_facts import run_preflight
from peer_agent.trainer.collaboration import Collaboration


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
    """Train until the run is finished, or somebody asks to leave. The rest as of `run_trainer`. Raises Problem."""
    await compare_versions(run_url, view)
    access = await access_for(leave_request.home, run_url, enrolment)
    preflight = await run_preflight(access, disk_gb=limits.disk_gb)
    view.preflight(preflight)
    view.say("Loading torch, which takes some seconds.")
    limits = msgspec.structs.replace(limits, at_once=preflight.at_once, recomputes=preflight.recomputes)
    run_trainer = await asyncio.to_thread(_loaded_trainer)  # loads torch: after the cheap checks
    await run_trainer(access, limits, leave_request, view, publish=publish, place=place, collaboration=collaboration)


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
