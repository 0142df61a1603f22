"""A contributor without torch: `python -m tests.benchmarks.rig.contributor FOLDER PEER CONTROL ELEMENTS [SECONDS
[ADDRESS]]`.

Sums, codec, links, sending order and assembly are the agent's own. The gradient is noise, and the averages update no
model."""

import asyncio
import contextlib
import os
import secrets
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Accumulator
from peer_agent.network.probing import Prober
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import advance, heard
from peer_agent.protocol.trainer.state import new_trainer
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.recipes import KINDS
from peer_agent.relay.place import Place
from peer_agent.site.credential import RunAccess
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.listening import Listening
from peer_agent.trainer.round import OpenRound, contribute
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent
from tests.protocol.identities import RUN

assert KINDS, "without the recipes, a trainer's core quits at the greeting"

PATIENCE_S = 30.0


class Contributor:
    """The shipped trainer core. A script drives it repeatedly from cut to commit. The core's clock does not tick."""

    further_s = 15.0  # seconds until a second unit of the same step

    def __init__(
        self,
        access: RunAccess,
        grid: Grid,
        unit_s: float = 0.0,
        place: Place | None = None,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Create a contributor. `unit_s`: seconds to compute a unit, excluding the time to add it. `place`: address to
        listen on.

        `fail` receives the errors of background jobs. Without `fail`, an error ends the process.
        """
        self.access, self.grid, self.unit_s, self.place = access, grid, unit_s, place
        self._fail = fail or _end_process
        self.links = DataLinks(access, self._hear_relay, self._reached, lambda: self.round is not None)
        self.prober = Prober(RUN, self._say)
        self.listening: Listening | None = None
        self.core = new_trainer(RUN, access.peer, time.monotonic(), int(access.peer, 16))
        self.accumulator = Accumulator(grid)
        self.noise = np.random.default_rng(int(access.peer, 16)).standard_normal(grid.elements, dtype=np.float32)
        self.round: OpenRound | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._closing = False
        self._worked_at = -1
        self._cuts = 0
        self._free = asyncio.Lock()  # with staleness 1, an update waits for the unit that has begun
        self._waiting: e.Compute | None = None  # a unit to compute for the next cut, with staleness 1
        self._computed = self._later = 0  # tokens of the last unit; tokens to add once the frozen sum is released

    async def run(self) -> None:
        await self.access.renew()
        self.site = await self.access.dial_control()
        try:
            await self._hear_site()
        finally:
            await self._close()

    async def _hear_site(self) -> None:
        if self.place is not None:
            await self._be_dialled(self.place)
        await self._take(e.Linked())
        while True:
            body = await self.site.receive()
            if isinstance(body, m.Probe) and body.begins:
                self.prober.hear(body, self.links.open.get(body.partner))
            if self.listening is not None:
                self.listening.hear(body)  # type: ignore[arg-type]
            await self._take(heard(body, self.access.site_key, self.access.peer))  # type: ignore[arg-type]

    async def _close(self) -> None:
        self._closing = True
        self.prober.close()
        for job in self._jobs:
            job.cancel()
        if self.round is not None:
            self.round.stop()
        if self.listening is not None:
            await self.listening.close()
        await self.links.close()
        await self.site.close()

    async def _be_dialled(self, place: Place) -> None:
        self.listening = Listening(self.access, self.links, self._say, self._fail)
        await self.listening.open(place)
        self.core.url, self.core.fingerprint = self.listening.url, self.listening.fingerprint

    def _say(self, message: m.TO_SITE) -> None:
        self._start(self.site.send(message))

    def _reached(self) -> None:
        listeners = tuple(sorted(self.links.direct - {self.access.peer}))
        self._start(self._take(e.Reached(listeners)))

    async def _take(self, event: e.Event) -> None:
        for action in advance(self.core, event, time.monotonic(), secrets.randbits(128)):
            await self._carry(action)

    async def _carry(self, action: e.Action) -> None:
        match action:
            case e.Say():
                await self.site.send(action.message)
            case e.Dial():
                self.links.follow(action.listeners)
            case e.Load():
                self._start(self._load(action))
            case e.Compute():
                self._start(self._compute(action))
            case e.Freeze() | e.Send() | e.Serve() | e.StopSending() | e.Settle() | e.Release():
                self._carry_round(action)
            case e.Keep():
                self._add_noise(self._computed)
            case e.Apply():
                self._start(self._apply(action))
            case e.Warn() | e.Began() | e.Quit():
                raise AssertionError(f"nothing may go wrong here: {action}")

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        """Start a background job. If the job fails, the process ends."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not self._closing and not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _load(self, action: e.Load) -> None:
        """Wait for the links to all relays instead of loading a snapshot, so that the next hello reports them as
        open."""
        others = {listener.peer for listener in action.greeting.listeners} - {self.access.peer}
        while not others <= self.links.open.keys():  # noqa: ASYNC110 (a dictionary cannot be awaited)
            await asyncio.sleep(0.01)
        await self._take(e.Loaded(action.job, ""))

    async def _compute(self, action: e.Compute) -> None:
        assert self.core.recipe is not None
        overlaps = self.core.overlaps
        place, base = self._cuts if overlaps else self.core.step, self.core.step
        # Delay every unit after a step's first, so that each round has a first unit of every trainer. If a trainer is
        # away, the further units fill the batch.
        is_further = self.unit_s and self._worked_at == place
        if is_further and overlaps:
            self._waiting = action
            return
        self._worked_at = place
        async with self._free if overlaps else contextlib.nullcontext():
            await asyncio.sleep(self.further_s if is_further else self.unit_s)
        if self.core.in_hand is None or self.core.in_hand.job != action.job:
            return  # the round was cut in the meantime
        (unit,) = action.units
        # a power of two, so that the mean equals the noise exactly
        _, tokens = self.core.recipe.loss_units_in(unit.samples)
        self._computed = tokens
        await self._take(e.Computed(action.job, 2.5 * tokens, (tokens,), base))

    def _add_noise(self, tokens: int) -> None:
        if self.core.round is not None:
            self._later += tokens
        elif tokens:
            self.accumulator.add(self.noise * np.float32(tokens))

    def _carry_round(self, action: e.Freeze | e.Send | e.Serve | e.StopSending | e.Settle | e.Release) -> None:
        if isinstance(action, e.Freeze):
            self._cuts += 1
            if self._waiting is not None:
                self._start(self._compute(self._waiting))
                self._waiting = None
            self.round = OpenRound(action.cut, Assembly(self.grid, action.cut.codec))
            self._start(self._freeze(action, self.round))
            return
        if self.round is None:
            return  # this peer was not in the round; the log has the averages
        match action:
            case e.Send():
                assert self.core.round is not None
                self.round.follow(action.plan.plan, self.core.round.slot)
                self.round.task = asyncio.create_task(contribute(self.round, self.links))
            case e.Serve():
                self.round.serve(action.peer, action.message)
            case e.StopSending():
                self.round.stop_sending()
            case e.Settle():
                self.accumulator.remove_averaged(action.included)
                self._end_round()
            case e.Release():
                self.accumulator.release()
                self._end_round()

    def _end_round(self) -> None:
        assert self.round is not None
        self.round.stop()
        self.round = None
        later, self._later = self._later, 0
        self._add_noise(later)

    async def _freeze(self, action: e.Freeze, round_: OpenRound) -> None:
        sending = round_.sending = await asyncio.to_thread(self.accumulator.offer, action.cut.codec, action.weights)
        await self._take(e.Frozen(action.job, sending.root, sending.norm))

    async def _apply(self, action: e.Apply) -> None:
        """Count the update without changing a model. The digest identifies the averages."""
        head = action.record.record
        if self.round is not None and self.round.is_of(head):
            await self.round.wait_for_chunks(head, PATIENCE_S)
            average = self.round.assembly.gradient(head)
            assert isinstance(average, np.ndarray), f"missing: {average}"
        async with self._free:
            pass
        await self._take(e.Applied(action.job, f"{zlib.crc32(repr(head.spans).encode()):016x}"))

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        match body:
            case Frame(kind=Kind.PROBE):
                self.prober.frame_came(peer, body)
            case Frame():
                if self.listening is not None:
                    await self.listening.hear_average(peer, body)
                await self._keep(body)
            case m.Open():
                await self._take(e.OpenHeard(peer, body))
            case m.SlotRefused():
                raise AssertionError(f"refused: {body}")

    async def _keep(self, frame: Frame) -> None:
        if self.round is None or not self.round.keep_chunk(frame):
            return
        self.round.arrived.set()
        if (gathered := self.round.gathered()) is not None:
            await self._take(gathered)


def _end_process(error: BaseException) -> None:
    traceback.print_exception(error)
    os._exit(1)


def main(folder: str, peer: str, control: str, elements: str, *rest: str) -> None:
    """Contribute until the process is ended. If an address is given, listen there."""
    leave_with_parent()
    unit_s, address = (*rest, *("0", "")[len(rest) :])
    access = OwnAccess(Path(folder), PeerId(peer), Role.TRAINER, control)
    place = Place(address) if address else None
    asyncio.run(Contributor(access, grid_of(int(elements)), float(unit_s), place).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
