"""Wait while this machine is on hold, and show the reason."""

import asyncio
import time

from msgspec.structs import replace

from peer_agent.display.lines import View
from peer_agent.display.status import write_status
from peer_agent.machine.leave_request import LeaveRequest
from peer_agent.network.link import until_one_ends
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl, stay_on_hold


async def rest(access: RunAccess, owner: MachineControl, leave_request: LeaveRequest, view: View) -> bool:
    """Wait until the machine may work again. Return False if it must leave the run instead.

    Raises Problem if the link to the site fails for a reason that reconnecting cannot fix.
    """
    asked_to_leave = asyncio.Event()
    leave_request.gently = asked_to_leave.set

    async def show(reason: str) -> None:
        view.hold(reason)
        await asyncio.to_thread(write_status, access.home, replace(view.now), time.time())

    await until_one_ends(stay_on_hold(access, owner, show), asked_to_leave.wait())
    return not (asked_to_leave.is_set() or owner.is_to_finish or owner.move_to)
