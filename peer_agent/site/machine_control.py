"""The owner's instructions for this machine.

The owner sets them on the machine's page at the site, and the machine answers them with reports. A process has one
`MachineControl`, which outlives links and runs.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from peer_agent.machine.energy import LOOK_S as METER_S
from peer_agent.machine.energy import Meter, Used
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

LOOK_S = 0.5  # seconds between observations of this machine
REPORT_S = 60.0  # after this time, an unchanged report is repeated as a heartbeat, with new traffic figures
DUE_S = 5.0  # the same, from the end of a pause until the site sends new instructions
KBPS = 1000 / 8  # bytes per second in a kilobit per second


def _nothing(*_: object) -> None:
    """Ignore a report, because no callback was given."""


class Refusal(NamedTuple):
    """A contribution that a peer refused.

    `step`: the contribution's step. `by`: the peer. `is_relays`: True if the peer is one of the site's relays.
    """

    step: int
    by: PeerId
    is_relays: bool
    reason: str


def credible(refused: tuple[Refusal, ...]) -> tuple[str, ...]:
    """Return the reasons for refusals if a relay or at least two members refused, otherwise ().

    A single member must not be able to stop this machine.
    """
    is_one_members = len({refusal.by for refusal in refused}) < 2 and not any(each.is_relays for each in refused)
    return () if is_one_members else tuple(sanitize(refusal.reason) for refusal in refused)


class MachineControl:
    """Applies the owner's instructions. `on_change` is called when an instruction or limit may have changed."""

    def __init__(self, home: Home, limits: Limits, tell: Callable[[str, str], None] = _nothing) -> None:
        """Begin with the command line's `limits`. `tell` shows an event and a sentence to the machine's user."""
        self.wanted, self.revision = Instructions(revision=0), -1
        self.fit(limits)
        self.tell = tell
        self.rest = Rest()
        self.is_to_finish, self.move_to = False, ""
        self.could_not = ""  # code of the error that made the last move fail
        self.needed_bytes = 0  # bytes of memory that the run needs, estimated before loading it
        self.on_change: Callable[[], None] = _nothing
        self.changed = asyncio.Event()
        self._refused: tuple[Refusal, ...] = ()
        self._latched = Rest()  # a pause that lasts until the owner changes something
        self._around: Surroundings | None = None
        self._senses, self._month = Senses(), Month(home, since=TRAFFIC.sent + TRAFFIC.received)
        self._meter, self._metered_at = Meter(), time.monotonic()
        self._run, self._before = RunId(""), Used()  # the current run, and what this process had used before it
        self._say: Callable[[MachineReport], None] = _nothing
        self._said: MachineReport | None = None
        self._said_at = 0.0

    def fit(self, base: Limits) -> None:
        """Set a run's base limits, which the owner's settings override."""
        self.base, self.limits = base, narrowed(base, self.wanted.limits)

    # --- link ---------------------------------------------------------------------------------------------------

    def linked(self, run: RunId, say: Callable[[MachineReport], None]) -> None:
        """Begin to report over a new link to the site. The site answers a machine's first report with instructions."""
        if run != self._run:
            self._before = Used(self._meter.energy_wh, TRAFFIC.sent)
        self._run, self._say = run, say
        self._report(again=True)

    def unlinked(self) -> None:
        self._say = _nothing

    def hear(self, wanted: Instructions) -> None:
        """Apply the instructions if they are newer than the current ones. In any case, answer with a report."""
        if wanted.revision > self.revision:
            self.wanted, self.revision, self.could_not = wanted, wanted.revision, ""
            self._refused, self._latched = (), Rest()
            self.is_to_finish, self.move_to = wanted.finish, wanted.move_to
            self.fit(self.base)
            UPLINK.limit(KBPS * wanted.limits.up_kbps)
            DOWNLINK.limit(KBPS * wanted.limits.down_kbps)
            self._judge(is_new=True)
        self._report(again=True)

    @property
    def used(self) -> Used:
        """The electricity and upload that this process has used for the run so far."""
        before = self._before
        return Used(self._meter.energy_wh - before.energy_wh, TRAFFIC.sent - before.sent_bytes)

    def _report(self, *, again: bool = False) -> None:
        report = MachineReport(
            run=self._run,
            revision=self.revision,
            why=self.rest.why,
            detail=self.rest.detail,
            could_not=self.could_not,
            blind=self._senses.blind,
            month_bytes=self._month.moved.bytes,
            sent_bytes=self.used.sent_bytes,
            energy_wh=round(self.used.energy_wh),
            threads=self.limits.threads,
        )
        now = asyncio.get_running_loop().time()
        every_s = DUE_S if self._is_pause_over() else REPORT_S
        if again or now - self._said_at >= every_s or not _is_like(report, self._said):
            self._said, self._said_at = report, now
            self._say(report)

    def _is_pause_over(self) -> bool:
        """Return True if the pause is over by this machine's clock. Only the site ends the pause, by its own clock."""
        return self.wanted.pause and 0 < self.wanted.pause_until <= time.time()

    # --- observations -------------------------------------------------------------------------------------------

    def refused(self, refusal: Refusal) -> None:
        """Record that a peer refused a contribution.

        After too many in a row, this machine pauses until its owner acts.
        """
        if all(refusal.step != before.step for before in self._refused):
            self._refused = (*self._refused, refusal)[-MOST_REFUSALS:]
            self._judge()

    def accepted(self) -> None:
        self._refused = ()

    async def watch(self) -> None:
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._month.keep()

    async def look(self) -> None:
        moved = self._month.add(TRAFFIC.sent + TRAFFIC.received)
        if time.monotonic() - self._metered_at >= METER_S:
            self._metered_at = time.monotonic()
            await asyncio.to_thread(self._meter.look, works=not self.rest)
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
        """Return the reason to pause, based on the latest observation.

        If new instructions need facts that this observation lacks, they take effect at the next one.
        """
        around = self._around or Surroundings(now=datetime.now())  # noqa: DTZ005 (in local time)
        memory = max(around.memory_bytes, self.needed_bytes)
        return reason_to_rest(self.wanted, replace(around, refused=credible(self._refused), memory_bytes=memory))


def _is_like(one: MachineReport, other: MachineReport | None) -> bool:
    figures = {"month_bytes": 0, "sent_bytes": 0, "energy_wh": 0}
    return other is not None and replace(one, **figures) == replace(other, **figures)


SHOW_S = 1.0
MOST_REPORTS = 100  # Most reports queued for a slow link. Any more are dropped; reports recur anyway.


async def stay_on_hold(access: RunAccess, control: MachineControl, show: Callable[[str], Awaitable[None]]) -> None:
    """Wait until the owner wants this machine to work, to leave or to move to another run.

    In the meantime, the machine takes no part in the run. Every second, `show` is called with the reason for the pause.
    Raises Problem if the link to the site ends and reconnecting cannot help.
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
        """Ignore the link's state, because nothing waits for it while on hold."""

    await keep(access.dial_control, hear, on_state=told, random=Random())


async def _speak(link: Connection, reports: "asyncio.Queue[m.MachineReport]") -> None:
    with contextlib.suppress(LinkLost, Refused):  # the link's reader handles the error
        while True:
            await link.send(await reports.get())


async def _show(control: MachineControl, show: Callable[[str], Awaitable[None]]) -> None:
    while True:
        await show(in_words(control.rest, translated))
        await asyncio.sleep(SHOW_S)
