"""The floats of one replica's work: units in a thread, the sum of what was never offered, and what is offered.

Its core says when. The two sums are the 8 bytes a parameter of rule 9: while one is frozen, the other may grow.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from peer_agent.averaging.contributor import Accumulator, NotFinite, Sending
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.trainer import events as e
from peer_agent.trainer.collaboration import Collaboration, compute_units
from peer_agent.training.units import Computed, DeviceBatch

if TYPE_CHECKING:  # torch is loaded by whoever trains
    from peer_agent.training.loop import Trainer

LOOK_S = 0.2  # between looks whether a rest is still for something
LONGEST_REST_S = 300.0  # after one unit, whatever share of the time is allowed


class Accumulation:
    """One job after another in order; nothing changes the replica while units are computed (`busy`)."""

    def __init__(
        self, trainer: "Trainer", grid: Grid, busy: asyncio.Lock, collaboration: Collaboration | None = None
    ) -> None:
        """`collaboration`: where somebody else's loop computes; without one the agent's does, in a thread."""
        self.trainer, self.grid, self.busy = trainer, grid, busy
        self.accumulator = Accumulator(grid)
        self.speed = 0.0  # samples per second
        self.duty_percent = 100  # of the time, in which it computes
        self._rests_until = 0.0
        self._computed: Computed | None = None
        self.collaboration = collaboration or _own_loop()
        self._is_own = collaboration is None
        self.device_batch = DeviceBatch()

    def close(self) -> None:
        """The agent's loop computes no unit more."""
        if self._is_own:
            self.collaboration.end()

    async def compute(self, action: e.Compute, is_wanted: Callable[[int], bool]) -> e.Computed | e.NotFinite | None:
        """None where it is for nothing. Raises Problem E107, E111."""
        while (rest_s := self._rests_until - time.monotonic()) > 0:
            await asyncio.sleep(min(rest_s, LOOK_S))
            if not is_wanted(action.job):
                return None
        async with self.busy:
            if not is_wanted(action.job):
                return None
            began = time.monotonic()
            result = await asyncio.wrap_future(self.collaboration.ask(self.trainer.begin, *action.units))
        took_s = max(time.monotonic() - began, 1e-6)
        self._rests_until = time.monotonic() + min(took_s * (100 / self.duty_percent - 1), LONGEST_REST_S)
        samples = [unit.samples for unit in action.units]
        if self.trainer.at_once:  # memory was, or turned out to be, short
            self.device_batch.fits(self.trainer.at_once // max(samples))
        if not is_wanted(action.job):
            return None
        if not isinstance(result, Computed):
            self.device_batch.was_not_finite(len(samples))
            return e.NotFinite(action.job, self.device_batch.units)
        self.device_batch.took(len(samples), sum(samples), took_s)
        self._computed = result
        rate = sum(samples) / took_s
        self.speed = 0.9 * self.speed + 0.1 * rate if self.speed else rate
        return e.Computed(action.job, result.loss_sum, result.loss_tokens, result.base_step, self.device_batch.units)

    def keep(self) -> None:
        """Add the gradient that was computed last to the sum of what was never offered."""
        assert self._computed is not None
        self.trainer.keep(self._computed)

    def discard_held(self) -> None:
        """Throw away what was offered and what is left of earlier offers."""
        self.accumulator = Accumulator(self.grid)

    def renew(self) -> None:
        """Throw all gradients away."""
        self.trainer.discard()
        self.discard_held()

    def freeze(self, action: e.Freeze) -> Sending | None:
        """Add what was never offered to what is held, and encode that; in a thread. None where it is not finite."""
        try:
            self.hold()
            return self.accumulator.offer(action.cut.codec, action.weights)
        except NotFinite:
            return None

    def hold(self) -> None:
        """Add what was never offered to what is held. Raises NotFinite where that is too much."""
        if self.accumulator.sending is None and self.trainer.units:
            self.accumulator.add(self.trainer.take_sum().gradient_sum)

    def release(self) -> None:
        """The round made no update: what was offered stays."""
        if self.accumulator.sending is not None:
            self.accumulator.release()

    def remove_averaged(self, action: e.Settle) -> None:
        """What was averaged in leaves; what was not stays."""
        if self.accumulator.sending is not None:
            self.accumulator.remove_averaged(action.included)


def _own_loop() -> Collaboration:
    """In a thread: always the same, since glibc keeps what a thread has freed for it, and activations are large."""
    collaboration = Collaboration()
    threading.Thread(target=compute_units, args=[collaboration], name="computing", daemon=True).start()
    return collaboration
