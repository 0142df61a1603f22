"""A machine that rests by its owner's wish: it has left the run, holds nothing of it, and hears when it may work."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random

from peer_agent.machine.language import translated
from peer_agent.machine.resting.reasons import in_words
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, keep, until_one_ends
from peer_agent.protocol import messages as m
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl

LOOK_S = 1.0
MOST_REPORTS = 100  # that wait for a slow link; more are lost, and said again in time


async def stay_on_hold(access: RunAccess, control: MachineControl, show: Callable[[str], Awaitable[None]]) -> None:
    """Until it may work again, or is to finish or to move; `show` is told once a second why it rests.

    Raises Problem where nobody can say so any more.
    """
    try:
        await until_one_ends(_keep_link(access, control), _free(control), _show(control, show))
    finally:
        control.unlinked()


async def _free(control: MachineControl) -> None:
    while control.rest and not control.is_to_finish and not control.move_to:
        control.changed.clear()
        await control.changed.wait()


async def _keep_link(access: RunAccess, control: MachineControl) -> None:
    async def hear(link: Connection) -> None:
        reports: asyncio.Queue[m.MachineReport] = asyncio.Queue(MOST_REPORTS)
        speaking = asyncio.create_task(_speak(link, reports))
        control.linked(access.run, lambda report: None if reports.full() else reports.put_nowait(report))
        try:
            while True:
                body = await link.receive()
                if isinstance(body, m.Instructions):
                    control.hear(body)
        finally:
            control.unlinked()
            speaking.cancel()

    def told(_: Connected | Waiting) -> None:
        """A site that is away is tried again; nothing here waits for it."""

    await keep(access.dial_control, hear, on_state=told, random=Random())


async def _speak(link: Connection, reports: "asyncio.Queue[m.MachineReport]") -> None:
    with contextlib.suppress(LinkLost, Refused):  # noticed by whoever reads it
        while True:
            await link.send(await reports.get())


async def _show(control: MachineControl, show: Callable[[str], Awaitable[None]]) -> None:
    while True:
        await show(in_words(control.rest, translated))
        await asyncio.sleep(LOOK_S)
