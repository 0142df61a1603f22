"""What a trainer holds between two commits: leased units, the one in hand, gradients; and the loop that computes.

Not responsible for when: the agent opens and shuts it, and says what has been done.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from peer_agent.averaging.contributor import Accumulator, Sending, included_of
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.messages import DoneUnit
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.records import Record, Unit
from peer_agent.training.loop import Computed, NonFinite, Trainer

PASSED_OVER = 4  # rounds in a row after which work is kept although it is a step old


def new_accumulator_id() -> AccumulatorId:
    """A name that no accumulator had before."""
    return AccumulatorId(secrets.token_hex(16))


class Work:
    """Leases and gradients of one replica, which does not change while this is `busy`.

    `tell` hears of each unit that was computed, kept or not finite.
    """

    def __init__(
        self,
        trainer: Trainer,
        grid: Grid,
        busy: asyncio.Lock,
        tell: Callable[[Computed | NonFinite], Awaitable[None]],
    ) -> None:
        self.trainer, self.grid, self.busy, self.tell = trainer, grid, busy, tell
        self.accumulator = Accumulator(new_accumulator_id(), grid)
        self.queue: deque[Unit] = deque()
        self.computing: tuple[Unit, ...] = ()  # the unit in the thread: neither in the queue nor done
        self.quota = 0
        self.speed = 0.0  # samples per second
        self._is_open = False
        self._ready = asyncio.Event()
        self._passed_over = 0  # rounds in a row that were cut without us
        # Always the same thread: glibc keeps what each thread has freed for that thread, and activations are large.
        self._thread = ThreadPoolExecutor(1, "computing")

    @property
    def done(self) -> tuple[DoneUnit, ...]:
        """Units whose gradients are here and in no update."""
        return (*self.accumulator.units, *self.trainer.units)

    @property
    def undone(self) -> tuple[Unit, ...]:
        """Leased units that are still to be computed."""
        return (*self.computing, *self.queue)

    @property
    def samples(self) -> int:
        """Samples of what is done."""
        return sum(done.unit.samples for done in self.done)

    @property
    def is_full(self) -> bool:
        """Whether it rests until the next commit (rule 22)."""
        return self.samples >= self.quota

    def allow(self, *, is_open: bool) -> None:
        """Compute, or leave the unit in hand undone: not in a round, and at the head alone."""
        self._is_open = is_open
        if self._may_compute():
            self._ready.set()
        else:
            self._ready.clear()

    def lease(self, units: Iterable[Unit], quota: int) -> None:
        """More to do."""
        self.queue.extend(units)
        self.quota = quota
        self.allow(is_open=self._is_open)

    def start_over(self) -> None:
        """Forget all leases and gradients; begin another accumulator."""
        self.queue.clear()
        self.computing = ()
        self.trainer.discard()
        self.accumulator = Accumulator(new_accumulator_id(), self.grid)

    def _may_compute(self) -> bool:
        return self._is_open and bool(self.queue) and not self.is_full

    async def compute(self) -> None:
        """Compute leased units, one after another, whenever it is allowed. Raises Problem E107, E111."""
        try:
            while True:
                await self._ready.wait()
                async with self.busy:
                    result = await self._compute_next() if self._may_compute() else None
                if result is not None:
                    await self.tell(result)
                self.allow(is_open=self._is_open)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compute_next(self) -> Computed | NonFinite | None:
        """None where it was for nothing."""
        unit = self.queue.popleft()
        self.computing = (unit,)
        accumulator, step, began = self.accumulator.id, self.trainer.replica.step, time.monotonic()
        result = await asyncio.get_running_loop().run_in_executor(self._thread, self.trainer.compute, unit)
        if self.accumulator.id != accumulator:
            return None  # its leases ended meanwhile
        self.computing = ()
        if not self._is_open or self.trainer.replica.step != step:
            self.queue.appendleft(unit)  # the cut came before it was finished
            return None
        if isinstance(result, Computed):
            self.trainer.keep(result)
            rate = unit.samples / max(time.monotonic() - began, 1e-6)
            self.speed = 0.9 * self.speed + 0.1 * rate if self.speed else rate
        return result

    def offer(self, codec: Codec) -> Sending:
        """Freeze and encode what is done; runs in a thread. Raises Problem E108."""
        if self.accumulator.sending is None and self.trainer.units:
            taken = self.trainer.take()
            self.accumulator.add(taken.gradient_sum, taken.loss_tokens, taken.loss_sum, taken.units)
        return self.accumulator.offer(codec)

    def release(self) -> None:
        """The round was void: what was offered stays."""
        if self.accumulator.sending is not None:
            self.accumulator.release()

    def settle(self, record: Record, *, took_part: bool) -> None:
        """What was averaged in leaves the accumulator; what was not stays (rule 9)."""
        if self.accumulator.sending is not None:
            mine = next((c for c in record.contributions if c.accumulator == self.accumulator.id), None)
            if mine is not None:
                self.accumulator.settle(included_of(record, mine.slot))
            else:
                self.accumulator.release()
        if took_part:
            self._passed_over = 0
        else:
            self._do_again()

    def _do_again(self) -> None:
        """Work of a step that was cut without us is done again on the new parameters, so that steps stay exact.

        It is little, for we had only just become ready. A machine that is always too late keeps its work instead: it
        goes into the next step one step old, and that step says that it is not exact (rule 10).
        """
        if not self.trainer.units:
            return
        self._passed_over += 1
        if self._passed_over < PASSED_OVER:
            self.queue.extendleft(reversed([done.unit for done in self.trainer.units]))
            self.trainer.discard()
