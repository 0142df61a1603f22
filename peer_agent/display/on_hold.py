"""A machine that rests by its owner's wish, as it is shown meanwhile."""

import asyncio
import time

from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.display.status import write_status
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.site.on_hold import stay_on_hold


async def rest(access: RunAccess, owner: MachineControl, leave_request: LeaveRequest, view: View) -> bool:
    """Wait until it may work again in this run. False where it is to leave. Raises Problem."""
    asked_to_leave = asyncio.Event()
    leave_request.gently = asked_to_leave.set

    async def show(reason: str) -> None:
        view.hold(reason)
        await asyncio.to_thread(write_status, access.home, replace(view.now), time.time())

    resting = asyncio.create_task(stay_on_hold(access, owner, show))
    leaving = asyncio.create_task(asked_to_leave.wait())
    try:
        await asyncio.wait((resting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if asked_to_leave.is_set():
            return False
        await resting
    finally:
        for task in (resting, leaving):
            task.cancel()
        await asyncio.gather(resting, leaving, return_exceptions=True)
    return not owner.is_to_finish and not owner.move_to
