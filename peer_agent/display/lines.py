"""What the agent tells the person in front of it: one plain line at a time, and figures for whoever shows them."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from msgspec import Struct

from peer_agent.display.status import EVENTS, ShownTrouble, Status
from peer_agent.machine.faults import in_readers_words, sanitize_fault
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import gettext_noop, ngettext, sanitize, translated
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol import reasons
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.errors.troubles import Troubles
from peer_agent.protocol.log.records import Contribution, RecordHead

EVERY_S = 5.0  # between lines about progress
STATES = {
    "running": gettext_noop("The run is training."),
    "waiting": gettext_noop("{reason}."),
    "paused": gettext_noop("The organizer has paused the run."),
    "finishing": gettext_noop("The run is finishing."),
    "finished": gettext_noop("The run is finished. Thank you! Your work is in the model."),
    "": gettext_noop("The run is {state}."),  # of which a newer site tells
}


class Event(Struct, frozen=True):
    """Something that happened, at a time of day. `code`: of a numbered error."""

    at: str
    text: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.at}  {self.text}"


class View:
    """Lines on a stream. `now` has the newest figures, `troubles` what is wrong."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self.stream = stream
        self.clock: Callable[[], float] = time.monotonic
        self.now = Status()
        self.accepted = 0
        self.made = 0  # the newest step that was told of
        self.is_moving = False
        self.is_leaving = False
        self.troubles = Troubles()
        self.events: list[Event] = []  # the last few
        self._lasting: dict[str, ShownTrouble] = {}  # those that were told of
        self._told_at = 0.0
        self._state = ("", "")

    def preflight(self, preflight: Preflight) -> None:
        """What the work will take here, said before it begins."""
        print("\n".join(sanitize(line) for line in preflight.lines()), file=self.stream, flush=True)

    def newer(self, fault: Fault) -> None:
        """The site has a newer agent: the line that fetches it is for copying, so it stands alone."""
        print(in_readers_words(sanitize_fault(fault)).text, file=self.stream, flush=True)

    def say(self, text: str) -> None:
        """Tell people a sentence."""
        self.tell("note", text)

    def fault(self, fault: Fault) -> None:
        """A numbered error that this agent goes on after."""
        fault = in_readers_words(sanitize_fault(fault))
        self._add_event(str(fault), fault.code)

    def tell(self, event: str, text: str, **facts: Any) -> None:  # noqa: ARG002 (programs read them: `JsonLinesView`)
        """Something happened: one line, with the time of day."""
        self._add_event(text)

    def _add_event(self, text: str, code: str = "") -> None:
        event = Event(time.strftime("%H:%M:%S"), sanitize(text), code)
        self.events = [*self.events, event][-EVENTS:]
        self.show(str(event))

    def warn(self, text: str) -> None:
        """What the site says of how the run learns; told when that begins, since it is said anew with each figure."""
        begins, self.now.warning = text and not self.now.warning, text
        if begins:
            self.tell("warning", text)

    # --- troubles -----------------------------------------------------------------------------------------------

    def began(self, fault: Fault) -> None:
        """This error lasts from now on; it is told of once it has lasted for as long as the catalogue says."""
        self.troubles.began(sanitize_fault(fault), self.clock())
        self.look()

    def ended(self, *codes: str) -> None:
        """These errors last no longer, where they did."""
        for code in codes:
            self.troubles.ended(code)
        self.look()

    def look(self) -> None:
        """Write into `now` what is wrong, tell what is new of that, and tell what is over."""
        shown = [_shown(trouble.fault) for trouble in self.troubles.shown(self.clock())]
        self.now.troubles = shown
        for code in [code for code in self._lasting if not self.troubles.lasts(code)]:
            self.solved(self._lasting.pop(code))
        for trouble in shown:
            if trouble.code not in self._lasting:
                self.trouble(trouble)
            self._lasting[trouble.code] = trouble

    def trouble(self, trouble: ShownTrouble) -> None:
        """Something is wrong, as long as nothing else is said."""
        self.show(f"{time.strftime('%H:%M:%S')}  {trouble.line}")

    def solved(self, trouble: ShownTrouble) -> None:
        """A trouble that was told is over."""
        self.tell(
            "solved", _("Solved: {trouble}.").format(trouble=trouble.heading), code=trouble.code, title=trouble.title
        )

    def show(self, line: str) -> None:
        """Bring a line before the person's eyes."""
        print(line, file=self.stream, flush=True)

    def refresh(self) -> None:
        """`now` has changed; lines do not show that."""

    def state(self, state: str, reason: str) -> None:
        """What the run does, whenever that changes."""
        if (state, reason) == self._state:
            return
        self._state = state, reason
        self.is_moving = state in {"running", "finishing"}
        self.now.reason = reason
        if state == "finished":  # nobody looks at the agent again
            self.now.doing = state
        said = reasons.in_words(reason, translated)
        words = translated(STATES.get(state, STATES[""])).format(state=state, reason=said)
        self.tell("state", f"{words[:1].upper()}{words[1:]}", state=state, reason=reason)

    @property
    def run_state(self) -> str:
        """What the site said last of the run."""
        return self._state[0]

    def progress(self, step: int, samples: int, speed: float) -> None:
        """How the current step goes."""
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
        """A committed step, with what of it came from here."""
        mine = own.samples if own is not None else 0
        self.accepted += mine
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

    def begin(self) -> None:
        """Another run is joined: what was told of the one before is no news of it."""
        self.accepted = self.made = 0
        self.is_moving = self.is_leaving = False
        self._state = ("", "")
        now = Status()
        for name in now.__struct_fields__:  # whoever looks at the figures has hold of this one
            setattr(self.now, name, getattr(now, name))

    def hold(self, reason: str) -> None:
        """This machine is there and does nothing, for a reason in whole words; of the run it hears nothing."""
        self.is_moving = self.is_leaving = False
        self._state = ("", "")
        now = self.now
        now.doing, now.reason, now.samples, now.quota = "on hold", reason.rstrip(".।"), 0, 0
        now.samples_per_s = now.up_mbps = now.down_mbps = 0.0
        self.refresh()

    def leaves(self, step: int) -> None:
        """The person has asked the agent to leave, and it finishes a step first."""
        self.is_leaving = True
        words = _("Finishing step {step}, then leaving. Press Ctrl-C again to leave now.")
        self.tell("leaving", words.format(step=f"{step + 1:,}"))

    def farewell(self) -> None:
        """The last words to a person who has asked it to leave."""
        words = _("This machine has left. Nothing was lost. Run the same command to rejoin.")
        if self.accepted:
            words = ngettext(
                "This machine has left. {samples} of its samples is in the model. Run the same command to rejoin.",
                "This machine has left. {samples} of its samples are in the model. Run the same command to rejoin.",
                self.accepted,
            )
        self.tell("left", words.format(samples=f"{self.accepted:,}"))


def _of_step(record: RecordHead, mine: int) -> str:
    """A committed step in a line. `mine`: samples from here."""
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
