"""An auxiliary: a member's machine that averages for one run and stores its log. It computes no gradients and needs no
torch.
"""

import asyncio
import contextlib
import time

import msgspec

from peer_agent.display.lines import View
from peer_agent.display.on_hold import rest
from peer_agent.display.status import write_status
from peer_agent.machine import hardware
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import in_bytes, ngettext, sanitize, translated
from peer_agent.machine.leave_request import FINISH_S, LeaveRequest
from peer_agent.network.link import PASSING, Connected, Waiting, until_one_ends
from peer_agent.network.uplink import Rates
from peer_agent.protocol import messages as m
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.log.records import Entry, Record, read_record
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import parse_recipe
from peer_agent.relay.place import SEEN, Place, own_certificate
from peer_agent.relay.process import Relay, Watch
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl

LOOK_S, LEAVE_LOOK_S = 1.0, 0.05


async def run_auxiliary(
    access: RunAccess, owner: MachineControl, leave_request: LeaveRequest, view: View, *, place: Place
) -> None:
    """Average for a run until it has finished or this machine must leave.

    If the owner pauses the machine, leave the run and rejoin after the pause. Also return when `owner` moves the
    machine to another run. Raises Problem if this machine cannot go on.
    """
    view.say(translated(SEEN))
    view.say(_("This machine averages for the others and needs no GPU."))
    watching = asyncio.create_task(owner.watch())
    try:
        while True:
            auxiliary = Auxiliary(access, owner, view)
            await _work(auxiliary, leave_request, place)
            is_over = leave_request.is_asked or view.run_state == "finished"
            if is_over or not owner.rest or not await rest(access, owner, leave_request, view):
                break
    finally:
        watching.cancel()
    if leave_request.is_asked or owner.is_to_finish:
        words = _("This machine has left. It averaged {size} for the others.")
        view.tell("left", " ".join(filter(None, [words.format(size=in_bytes(auxiliary.averaged)), view.used])))


async def _work(auxiliary: "Auxiliary", leave_request: LeaveRequest, place: Place) -> None:
    leave_request.gently = auxiliary.finish
    access, owner = auxiliary.access, auxiliary.owner
    relay = Relay(
        access.home,
        access,
        host=place.host,
        port=place.port,
        advertise=place.url(place.port) if place.advertise else "",
        certificate=await asyncio.to_thread(own_certificate, access.home),
        watch=Watch(auxiliary.linked, auxiliary.heard, auxiliary.listens, auxiliary.opened, owner.hear),
        reserve_percent=owner.limits.reserve_percent,
    )
    auxiliary.relay, owner.on_change = relay, auxiliary.obey
    try:
        await until_one_ends(relay.run(), auxiliary.observe(), auxiliary.ended.wait())
    finally:
        owner.unlinked()


def _trouble_of(state: Connected | Waiting) -> Fault | None:
    """Return the fault that the state of the link to the site indicates, or None if the link is open.

    A site that cannot be reached may just be restarting, so the fault is then E134.
    """
    if isinstance(state, Connected):
        return None
    return hardware.not_reached(state.fault) if state.fault.code in PASSING else state.fault


class Auxiliary:
    """Decides when an auxiliary leaves, and updates the displayed status."""

    def __init__(self, access: RunAccess, owner: MachineControl, view: View) -> None:
        self.access, self.owner, self.view, self.now = access, owner, view, view.now
        self.relay: Relay | None = None
        self.ended = asyncio.Event()
        self.averaged = 0  # bytes averaged since the start
        self._index = 0  # index of the latest entry reported
        self._away: Fault | None = None
        self._recipe: Recipe | None = None
        self._rates = Rates()
        self._leaving: asyncio.Task[None] | None = None
        self.now.role, self.now.site = access.role.value, access.site.url
        self.now.run, self.now.person = access.slug, access.site.person

    # --- events

    def linked(self, state: Connected | Waiting) -> None:
        before, self._away = self._away, _trouble_of(state)
        if self._away is not None:
            self.view.began(self._away)
        if before is not None and (self._away is None or self._away.code != before.code):
            self.view.ended(before.code)

    def opened(self) -> None:
        """Tell the machine control that a link to the site is open.

        It can now send reports and receive instructions.
        """
        if self.relay is not None:
            self.owner.linked(self.access.run, self.relay.say)

    def obey(self) -> None:
        """Apply the owner's changed instructions. Leave at once to pause; leave after the round to move or finish."""
        if self.owner.rest:
            self.ended.set()
        elif (self.owner.is_to_finish or self.owner.move_to) and self._leaving is None:
            self.finish()

    def listens(self, port: int) -> None:
        self.view.tell("listening", _("Listening at port {port}.").format(port=port), port=port)

    def heard(self, body: m.TO_PEER) -> None:
        """Update the display and state from a message sent by the site."""
        match body:
            case m.Greeting():
                self._recipe = parse_recipe(body.recipe)
                self._greeted(body)
                self.now.step = min(body.step + 1, self._recipe.target_steps)
                self.now.target_steps = self._recipe.target_steps
            case m.Notice():
                self.view.fault(Fault(body.code, body.text))
            case m.State():
                self.view.state(body.state, body.reason)
                if body.state == "finished":
                    self.ended.set()
            case m.Commit():
                with contextlib.suppress(Problem):  # the log keeper reports an entry that cannot be read
                    self._committed(read_record(Entry(body.record, body.contributions)))

    def _greeted(self, greeting: m.Greeting) -> None:
        if greeting.step < self.view.made:
            self.view.say(f"The run was rolled back to step {greeting.step:,}.")
        self._index, self.view.made = max(self._index, greeting.index), greeting.step

    def _committed(self, record: Record) -> None:
        """Display a newly committed update. Skip older entries, which the site resends in pages of the log."""
        if record.index <= self._index or record.kind != "update" or self._recipe is None:
            return
        self._index = record.index
        own = averaged_bytes(record).get(self.access.peer, 0)
        self.averaged += own
        self.view.made = record.step
        self.now.loss, self.now.averaged_bytes = record.loss, self.averaged
        self.now.step = min(record.step + 1, self.now.target_steps)
        self._tell(record, own)

    def _tell(self, record: Record, own: int) -> None:
        machines = record.contributors
        facts = {"step": record.step, "loss": record.loss, "machines": machines, "samples": record.samples}
        words = ngettext(
            "step {step}: loss {loss}, {machines} machine, {size} averaged here",
            "step {step}: loss {loss}, {machines} machines, {size} averaged here",
            machines,
        )
        figures = {"step": f"{record.step:,}", "loss": f"{record.loss:.3f}", "machines": f"{machines:,}"}
        self.view.tell("step", words.format(**figures, size=in_bytes(own)), **facts, averaged_bytes=own)

    # --- leaving

    def finish(self) -> None:
        """Leave after the current round."""
        self._leaving = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        until = time.monotonic() + FINISH_S
        if self.is_in_round:
            self.view.leaves(self.now.step - 1)
        while self.is_in_round and time.monotonic() < until:  # noqa: ASYNC110 (a commit, a void, or a link ends it)
            await asyncio.sleep(LEAVE_LOOK_S)
        self.ended.set()

    @property
    def is_in_round(self) -> bool:
        """True if a round is open on this machine and the run is training."""
        runs = self.relay.runs if self.relay is not None else {}
        run = runs.get(self.access.run)
        reducer = run.state.reducer if run is not None else None
        is_open = reducer is not None and reducer.attempt is not None
        return is_open and self.view.is_moving and self._away is None

    # --- display

    async def observe(self) -> None:
        """Update the display, and the file read by `manyhands status`, about once a second."""
        while True:
            self.now.doing, self.now.title = self._doing(), sanitize(self.access.title)
            self.now.up_mbps, self.now.down_mbps = self._rates.read()
            self.now.energy_wh, self.now.sent_bytes = self.owner.used
            self.now.events = [str(event) for event in self.view.events]
            self.view.look()
            self.view.refresh()
            status = msgspec.structs.replace(self.now)
            await asyncio.to_thread(write_status, self.access.home, status, time.time())
            await asyncio.sleep(LOOK_S)

    def _doing(self) -> str:
        if self.view.run_state == "finished":
            return "finished"
        if self._leaving is not None:
            return "leaving"
        if self._away is not None:
            return "away"
        if self._recipe is None:
            return "joining"
        return self.view.run_state if self.view.run_state in {"waiting", "paused"} else "helping"
