"""The output of `manyhands join --json` for programs; docs/reference/json-lines.md describes every event."""

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from peer_agent.display.lines import EVERY_S, View
from peer_agent.display.status import ShownTrouble
from peer_agent.machine.faults import faults_of, sanitize_fault
from peer_agent.machine.language import sanitize
from peer_agent.machine.preflight import Preflight
from peer_agent.protocol.errors import Fault
from peer_agent.site.enrolment import Code

FIGURES = (
    *("doing", "step", "target_steps", "loss", "heldout_loss", "warning", "samples", "quota", "samples_per_s"),
    *("up_mbps", "down_mbps", "accepted", "rank", "people", "averaged_bytes"),
)


class JsonLinesView(View):
    """Prints each event as a JSON line.

    Prints the current figures when the agent's activity changes, and otherwise every few seconds.
    """

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        super().__init__(stream)
        self._figures_at = 0.0
        self._doing = ""

    def preflight(self, preflight: Preflight) -> None:
        self._emit("preflight", **msgspec.structs.asdict(preflight))

    def newer(self, fault: Fault) -> None:
        self._emit("newer", code=fault.code, text=sanitize_fault(fault).text)

    def tell(self, event: str, text: str, **facts: Any) -> None:
        super().tell(event, text, **facts)
        self._emit(event, **facts, text=sanitize(text))

    def fault(self, fault: Fault) -> None:
        fault = sanitize_fault(fault)
        self._emit("error", code=fault.code, title=fault.title, severity=fault.severity, text=fault.text)

    def trouble(self, trouble: ShownTrouble) -> None:
        self._emit("trouble", **msgspec.structs.asdict(trouble))

    def show(self, line: str) -> None:
        """Print nothing, because `tell` prints each event as JSON."""

    def progress(self, step: int, samples: int, speed: float) -> None:
        """Print nothing, because `refresh` prints the figures."""

    def refresh(self) -> None:
        now = self.clock()
        if self.now.doing != self._doing or now - self._figures_at >= EVERY_S:
            self._doing, self._figures_at = self.now.doing, now
            self._emit("figures", **{name: getattr(self.now, name) for name in FIGURES})

    def ask_for_approval(self, code: Code) -> None:
        """Print the address at which to approve this machine, and the code to enter there."""
        facts = {"code": code.user_code, "url": code.verification_uri_complete, "expires_in_s": code.expires_in}
        self.tell("approval", f"Waiting for approval at {code.verification_uri_complete}", **facts)

    @contextlib.contextmanager
    def hears_errors(self) -> Iterator[None]:
        """If an error ends the block, print it as the last event, and raise it again."""
        try:
            yield
        except Exception as error:
            for fault in faults_of(error):
                self.fault(fault)
            raise

    def _emit(self, event: str, **facts: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(msgspec.json.encode({"at": at, "event": event, **facts}).decode(), file=self.stream, flush=True)
