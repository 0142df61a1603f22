"""A view that prints the agent's work as plain lines. The other views inherit from it."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from msgspec import Struct

from peer_agent.display.status import EVENTS, ShownTrouble, Status
from peer_agent.machine.energy import Used, used_in_words
from peer_agent.machine.faults import in_readers_words, sanitize_fault
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import gettext_noop, ngettext, sanitize, translated
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol import reasons
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.troubles import Troubles
from peer_agent.protocol.log.records import Contribution, RecordHead

EVERY_S = 5.0  # seconds between lines about progress
FIRST_CREDIT = "first_credit"
STATES = {
    "running": gettext_noop("The run is training."),
    "waiting": gettext_noop("{reason}."),
    "paused": gettext_noop("The organizer has paused the run."),
    "finishing": gettext_noop("The run is finishing."),
    "finished": gettext_noop("The run is finished. Thank you! Your work is in the model."),
    "": gettext_noop("The run is {state}."),  # for states known only to newer versions of the site
}


class Event(Struct, frozen=True):
    """An event with its time of day. `code` is an error's number, or "" for other events."""

    at: str
    text: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.at}  {self.text}"


class View:
    """Prints lines to a stream. `now` holds the current status, `troubles` the current faults."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self.stream = stream
        self.clock: Callable[[], float] = time.monotonic
        self.now = Status()
        self.accepted = 0
        self.made = 0  # the last committed step shown
        self._counted = 0  # log index up to which `accepted` counts
        self.is_moving = False
        self.is_leaving = False
        self.troubles = Troubles()
        self.events: list[Event] = []
        self._lasting: dict[str, ShownTrouble] = {}  # faults already shown, by code
        self._told_at = 0.0
        self._state = ("", "")

    def preflight(self, preflight: Preflight) -> None:
        """Print the resources that the run will use on this machine, before it begins."""
        print("\n".join(sanitize(line) for line in preflight.lines()), file=self.stream, flush=True)

    def newer(self, fault: Fault) -> None:
        """Print that the site offers a newer agent, with the upgrade command on its own line for copying."""
        print(in_readers_words(sanitize_fault(fault)).text, file=self.stream, flush=True)

    def say(self, text: str) -> None:
        self.tell("note", text)

    def fault(self, fault: Fault) -> None:
        """Show a numbered error that does not stop the agent."""
        fault = in_readers_words(sanitize_fault(fault))
        self._add_event(str(fault), fault.code)

    def tell(self, event: str, text: str, **facts: Any) -> None:  # noqa: ARG002 (`JsonLinesView` uses the facts)
        """Show an event as one line with the time of day."""
        self._add_event(text)

    def _add_event(self, text: str, code: str = "") -> None:
        event = Event(time.strftime("%H:%M:%S"), sanitize(text), code)
        self.events = [*self.events, event][-EVENTS:]
        self.show(str(event))

    def warn(self, text: str) -> None:
        """Set the site's warning about training, or clear it with "". Show a warning only if there was none before."""
        begins, self.now.warning = text and not self.now.warning, text
        if begins:
            self.tell("warning", text)

    # --- troubles -----------------------------------------------------------------------------------------------

    def began(self, fault: Fault) -> None:
        """Record the start of a lasting fault. Show it once it has lasted as long as its catalogue entry requires."""
        self.troubles.began(sanitize_fault(fault), self.clock())
        self.look()

    def ended(self, *codes: str) -> None:
        """Record that the faults with these codes have ended. Ignore codes without a current fault."""
        for code in codes:
            self.troubles.ended(code)
        self.look()

    def look(self) -> None:
        """Update the faults in `now`. Show new faults, and those that have been resolved."""
        shown = [_shown(trouble.fault) for trouble in self.troubles.shown(self.clock())]
        self.now.troubles = shown
        for code in [code for code in self._lasting if not self.troubles.lasts(code)]:
            self.solved(self._lasting.pop(code))
        for trouble in shown:
            if trouble.code not in self._lasting:
                self.trouble(trouble)
            self._lasting[trouble.code] = trouble

    def trouble(self, trouble: ShownTrouble) -> None:
        self.show(f"{time.strftime('%H:%M:%S')}  {trouble.line}")

    def solved(self, trouble: ShownTrouble) -> None:
        self.tell(
            "solved", _("Solved: {trouble}.").format(trouble=trouble.heading), code=trouble.code, title=trouble.title
        )

    def show(self, line: str) -> None:
        print(line, file=self.stream, flush=True)

    def refresh(self) -> None:
        """Do nothing, because printed lines cannot be updated."""

    def state(self, state: str, reason: str) -> None:
        if (state, reason) == self._state:
            return
        self._state = state, reason
        self.is_moving = state in {"running", "finishing"}
        self.now.reason = reason
        if state == "finished":  # the agent makes no more observations
            self.now.doing = state
        said = reasons.in_words(reason, translated)
        words = translated(STATES.get(state, STATES[""])).format(state=state, reason=said)
        self.tell("state", f"{words[:1].upper()}{words[1:]}", state=state, reason=reason)

    @property
    def run_state(self) -> str:
        """The run's state, as last reported by the site."""
        return self._state[0]

    def progress(self, step: int, samples: int, speed: float) -> None:
        if self.clock() - self._told_at >= EVERY_S:
            self._told_at = self.clock()
            words = ngettext(
                "step {step}: {samples} sample here, {speed} samples/s; {accepted} accepted so far",
                "step {step}: {samples} samples here, {speed} samples/s; {accepted} accepted so far",
                samples,
            )
            figures = {"step": f"{step + 1:,}", "samples": f"{samples:,}", "accepted": f"{self.accepted:,}"}
            self.say(words.format(**figures, speed=f"{speed:.1f}"))

    def step(self, record: RecordHead, own: Contribution | None) -> None:
        """Show a committed step. `own`: this machine's contribution to the step."""
        mine = own.samples if own is not None else 0
        if record.index > self._counted:  # replaying the log shows steps again
            self.accepted, self._counted = self.accepted + mine, record.index
        self.made, self.now.loss = record.step, record.loss
        machines = record.contributors
        self.tell(
            "step",
            _of_step(record, mine),
            step=record.step,
            loss=record.loss,
            machines=machines,
            samples=record.samples,
            from_here=mine,
        )

    def first_credit(self, step: int, samples: int) -> None:
        """Show that this machine has received its first credit in this run."""
        words = ngettext(
            "Your first {samples} sample is in the model: step {step}.",
            "Your first {samples} samples are in the model: step {step}.",
            samples,
        )
        self.tell(FIRST_CREDIT, words.format(samples=f"{samples:,}", step=f"{step:,}"), step=step, samples=samples)

    def begin(self) -> None:
        """Reset the view when the agent moves to another run."""
        self.accepted = self.made = self._counted = 0
        self.is_moving = self.is_leaving = False
        self._state = ("", "")
        now = Status()
        for name in now.__struct_fields__:  # other objects refer to `self.now`, so change it in place
            setattr(self.now, name, getattr(now, name))

    def hold(self, reason: str) -> None:
        """Show that this machine is on hold, and why. While it is, the site sends no messages about the run."""
        self.is_moving = self.is_leaving = False
        self._state = ("", "")
        now = self.now
        now.doing, now.reason, now.samples, now.quota = "on hold", reason.rstrip(".।"), 0, 0
        now.samples_per_s = now.up_mbps = now.down_mbps = 0.0
        self.refresh()

    def leaves(self, step: int) -> None:
        """Show that the agent was told to leave, and will do so after this step."""
        self.is_leaving = True
        words = _("Finishing step {step}, then leaving. Press Ctrl-C again to leave now.")
        self.tell("leaving", words.format(step=f"{step + 1:,}"))

    @property
    def used(self) -> str:
        """A sentence about the electricity and upload used for the run, or ""."""
        return used_in_words(Used(self.now.energy_wh, self.now.sent_bytes))

    def farewell(self) -> None:
        """Show the last message of an agent that has left on request."""
        words = _("This machine has left. Nothing was lost. Run the same command to rejoin.")
        if self.accepted:
            words = ngettext(
                "This machine has left. {samples} of its samples is in the model. Run the same command to rejoin.",
                "This machine has left. {samples} of its samples are in the model. Run the same command to rejoin.",
                self.accepted,
            )
        self.tell("left", " ".join(filter(None, [words.format(samples=f"{self.accepted:,}"), self.used])))


def _of_step(record: RecordHead, mine: int) -> str:
    words = ngettext(
        "step {step}: loss {loss}, {machines} machine, {mine} of {samples} samples from this machine",
        "step {step}: loss {loss}, {machines} machines, {mine} of {samples} samples from this machine",
        record.contributors,
    )
    return words.format(
        step=f"{record.step:,}",
        loss=f"{record.loss:.3f}",
        machines=f"{record.contributors:,}",
        mine=f"{mine:,}",
        samples=f"{record.samples:,}",
    )


def _shown(fault: Fault) -> ShownTrouble:
    return ShownTrouble(fault.code, fault.title, fault.severity, sanitize(fault.text))
