"""What the agent tells the person in front of it: one plain line at a time."""

import sys
import time
from typing import TextIO

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.records import Record

EVERY_S = 5.0  # between lines about progress


class View:
    """Lines on a stream."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self.stream = stream
        self.accepted = 0
        self._told_at = 0.0
        self._state = ("", "")

    def say(self, text: str) -> None:
        """One line, with the time of day."""
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=self.stream, flush=True)

    def state(self, state: str, reason: str) -> None:
        """What the run does, whenever that changes."""
        if (state, reason) == self._state:
            return
        self._state = state, reason
        words = {
            "running": "The run is moving.",
            "waiting": f"The run waits: {reason}.",
            "paused": "The organizer has paused the run.",
            "finished": "The run is finished. Thank you; your work is in the model.",
        }
        self.say(words.get(state, f"The run is {state}."))

    def progress(self, step: int, samples: int, speed: float) -> None:
        """How the current step goes."""
        if time.monotonic() - self._told_at >= EVERY_S:
            self._told_at = time.monotonic()
            self.say(f"step {step + 1}: {samples} samples here, {speed:.1f} samples/s; {self.accepted} accepted so far")

    def step(self, record: Record, me: PeerId) -> None:
        """A committed step, with what of it came from here."""
        mine = sum(entry.samples for entry in record.contributions if entry.peer == me)
        self.accepted += mine
        hands = len(record.contributions)
        self.say(
            f"step {record.step} is made: loss {record.loss:.3f}, {hands} {'hand' if hands == 1 else 'hands'}, "
            f"{mine} of {record.samples} samples from here"
        )
