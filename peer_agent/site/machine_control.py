"""What the owner of this machine wants of it, as its page at the site says: heard on the control link, done, answered.

One for the life of a process, over all its links and runs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import sanitize, translated
from peer_agent.machine.limits import Limits, narrowed
from peer_agent.machine.resting import (
    MOST_REFUSALS,
    UNTIL_TOLD,
    Month,
    Rest,
    Senses,
    Surroundings,
    in_words,
    reason_to_rest,
)
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, keep, until_one_ends
from peer_agent.network.uplink import DOWNLINK, TRAFFIC, UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import Instructions, MachineReport
from peer_agent.site.credential import RunAccess

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between looks at what goes on here
REPORT_S = 60.0  # after which it says the same again: how much it has moved, and that it is there
KBPS = 1000 / 8  # bytes per second


def _nothing(*_: object) -> None:
    """Nobody is there to do it."""


class Refusal(NamedTuple):
    """Who refused a contribution to which step, and why in words. A relay is its site's; others are members."""

    step: int
    by: PeerId
    is_relays: bool
    reason: str


def credible(refused: tuple[Refusal, ...]) -> tuple[str, ...]:
    """The reasons, where a relay or two members gave them: what one member says puts no machine on hold."""
    is_one_members = len({refusal.by for refusal in refused}) < 2 and not any(each.is_relays for each in refused)
    return () if is_one_members else tuple(sanitize(refusal.reason) for refusal in refused)


class MachineControl:
    """Who works is told by `on_change` that `rest`, `limits`, `is_to_finish` or `move_to` have changed."""

    def __init__(self, home: Home, limits: Limits, tell: Callable[[str, str], None] = _nothing) -> None:
        """`limits`: of the command line. `tell`: an event and a sentence for whoever is in front of the machine."""
        self.wanted, self.revision = Instructions(revision=0), -1
        self.fit(limits)
        self.tell = tell
        self.rest = Rest()
        self.is_to_finish, self.move_to = False, ""
        self.could_not = ""  # the number of the error that kept it out of the run it was to move to
        self.needed_bytes = 0  # of memory, by what was measured before the run was loaded
        self.on_change: Callable[[], None] = _nothing
        self.changed = asyncio.Event()
        self._refused: tuple[Refusal, ...] = ()
        self._latched = Rest()  # until the owner says something new
        self._around: Surroundings | None = None
        self._senses, self._month = Senses(), Month(home, since=TRAFFIC.sent + TRAFFIC.received)
        self._run = RunId("")
        self._say: Callable[[MachineReport], None] = _nothing
        self._said: MachineReport | None = None
        self._said_at = 0.0

    def fit(self, base: Limits) -> None:
        """What the command line allows, as far as it fits into a run; what the owner wants holds on top of it."""
        self.base, self.limits = base, narrowed(base, self.wanted.limits)

    # --- the link -----------------------------------------------------------------------------------------------

    def linked(self, run: RunId, say: Callable[[MachineReport], None]) -> None:
        """A control link is open: the machine speaks first, and is answered with what is wanted of it."""
        self._run, self._say = run, say
        self._report(again=True)

    def unlinked(self) -> None:
        self._say = _nothing

    def hear(self, wanted: Instructions) -> None:
        """What the owner wants from now on. What was heard before is answered, and not done again."""
        if wanted.revision > self.revision:
            self.wanted, self.revision, self.could_not = wanted, wanted.revision, ""
            self._refused, self._latched = (), Rest()
            self.is_to_finish, self.move_to = wanted.finish, wanted.move_to
            self.fit(self.base)
            UPLINK.limit(KBPS * wanted.limits.up_kbps)
            DOWNLINK.limit(KBPS * wanted.limits.down_kbps)
            self._judge(is_new=True)
        self._report(again=True)

    def _report(self, *, again: bool = False) -> None:
        report = MachineReport(
            run=self._run,
            revision=self.revision,
            why=self.rest.why,
            detail=self.rest.detail,
            could_not=self.could_not,
            blind=self._senses.blind,
            month_bytes=self._month.moved.bytes,
            threads=self.limits.threads,
        )
        now = asyncio.get_running_loop().time()
        if again or now - self._said_at >= REPORT_S or not _is_like(report, self._said):
            self._said, self._said_at = report, now
            self._say(report)

    # --- what goes on here --------------------------------------------------------------------------------------

    def refused(self, refusal: Refusal) -> None:
        """One of its contributions was refused. After so many steps in a row it rests until its owner has looked."""
        if all(refusal.step != before.step for before in self._refused):
            self._refused = (*self._refused, refusal)[-MOST_REFUSALS:]
            self._judge()

    def accepted(self) -> None:
        self._refused = ()

    async def watch(self) -> None:
        """Look at this machine again and again, until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._month.keep()

    async def look(self) -> None:
        moved = self._month.add(TRAFFIC.sent + TRAFFIC.received)
        limits, refused = self.wanted.limits, credible(self._refused)
        around = await asyncio.to_thread(self._senses.look, limits, month_bytes=moved, refused=refused)
        if limits == self.wanted.limits:
            self._around = around
            self._judge()
        self._report()

    def _judge(self, *, is_new: bool = False) -> None:
        rest = self._latched or self._found()
        if rest.why in UNTIL_TOLD:
            self._latched = rest
        before, self.rest = self.rest, rest
        if rest == before and not is_new:
            return
        if rest and rest != before:
            self.tell("on_hold", _("On hold. {reason}").format(reason=in_words(rest, translated)))
        elif before and not rest:
            self.tell("resumed", _("Working again."))
        self._report()
        self.changed.set()
        self.on_change()

    def _found(self) -> Rest:
        """By the newest look, which after new instructions may know nothing of what they are about for a moment."""
        around = self._around or Surroundings(now=datetime.now())  # noqa: DTZ005 (by the clock on the wall here)
        memory = max(around.memory_bytes, self.needed_bytes)
        return reason_to_rest(self.wanted, replace(around, refused=credible(self._refused), memory_bytes=memory))


def _is_like(one: MachineReport, other: MachineReport | None) -> bool:
    """Whether nothing has changed but figures that always do."""
    return other is not None and replace(one, month_bytes=0) == replace(other, month_bytes=0)


SHOW_S = 1.0
MOST_REPORTS = 100  # that wait for a slow link; more are lost, and said again in time


async def stay_on_hold(access: RunAccess, control: MachineControl, show: Callable[[str], Awaitable[None]]) -> None:
    """Rest by the owner's wish, out of the run and holding nothing of it, until it may work again, or finish or move.

    `show` is told once a second why it rests.

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
        await asyncio.sleep(SHOW_S)
