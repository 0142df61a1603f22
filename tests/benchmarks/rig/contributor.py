"""`python -m tests.benchmarks.rig.contributor FOLDER PEER CONTROL ELEMENTS [SECONDS]`: an agent's round without torch.

Sums, codec, links, sending order and assembly are the agent's own; the gradient is noise, and no step is made of it.
"""

import asyncio
import os
import secrets
import sys
import time
import traceback
import zlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Accumulator
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import advance
from peer_agent.protocol.trainer.hearing import heard
from peer_agent.protocol.trainer.state import new_trainer
from peer_agent.protocol.wire import Frame
from peer_agent.site.credential import RunAccess
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.round import OpenRound, contribute
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent
from tests.protocol.identities import RUN

PATIENCE_S = 30.0


class Contributor:
    """The shipped core of a trainer, from cut to commit, again and again. Its clock does not tick: a script talks."""

    def __init__(self, access: RunAccess, grid: Grid, unit_s: float = 0.0) -> None:
        """`unit_s`: seconds in which a unit is computed, beside whatever it takes to add it."""
        self.access, self.grid, self.unit_s = access, grid, unit_s
        self.links = DataLinks(access, self._hear_relay)
        self.core = new_trainer(RUN, access.peer, time.monotonic(), int(access.peer, 16))
        self.accumulator = Accumulator(grid)
        self.noise = np.random.default_rng(int(access.peer, 16)).standard_normal(grid.elements, dtype=np.float32)
        self.round: OpenRound | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until ended."""
        await self.access.renew()
        self.site = await self.access.dial_control()
        await self._take(e.Linked())
        while True:
            body = await self.site.receive()
            await self._take(heard(body, self.access.site_key, self.access.peer))  # type: ignore[arg-type]

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
            case e.Freeze() | e.Send() | e.Serve() | e.Settle():
                self._carry_round(action)
            case e.Apply():
                self._start(self._apply(action))
            case e.Warn() | e.Began() | e.Quit() | e.Release():
                raise AssertionError(f"nothing may go wrong here: {action}")

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        """Beside what is heard; where it fails, so does this process."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            os._exit(1)

    async def _load(self, action: e.Load) -> None:
        """There is no state; the hello after it says that all relays are linked."""
        while len(self.links.open) < len(action.greeting.listeners):  # noqa: ASYNC110 (a dictionary cannot be awaited)
            await asyncio.sleep(0.01)
        await self._take(e.Loaded(action.job, ""))

    async def _compute(self, action: e.Compute) -> None:
        assert self.core.recipe is not None
        await asyncio.sleep(self.unit_s)
        _, tokens = self.core.recipe.tokens_in(action.unit.samples)  # a power of two: the mean is what was drawn
        self.accumulator.add(self.noise * np.float32(tokens))
        await self._take(e.Computed(action.job, 2.5 * tokens, tokens))

    def _carry_round(self, action: e.Freeze | e.Send | e.Serve | e.Settle) -> None:
        if isinstance(action, e.Freeze):
            self.round = OpenRound(action.cut, Assembly(self.grid, action.cut.codec))
            self._start(self._freeze(action, self.round))
            return
        assert self.round is not None
        match action:
            case e.Send():
                assert self.core.round is not None
                self.round.follow(action.plan.plan, self.core.round.slot)
                self.round.task = asyncio.create_task(contribute(self.round, self.links))
            case e.Serve():
                self.round.serve(action.peer, action.message)
            case e.Settle():
                self.accumulator.remove_averaged(action.included)
                self.round.stop()
                self.round = None

    async def _freeze(self, action: e.Freeze, round_: OpenRound) -> None:
        sending = round_.sending = await asyncio.to_thread(self.accumulator.offer, action.cut.codec, action.weights)
        await self._take(e.Frozen(action.job, sending.root, sending.norm))

    async def _apply(self, action: e.Apply) -> None:
        """No step is made; the digest says that the whole average is here, and which."""
        assert self.round is not None
        await self.round.wait_for_chunks(action.record.record, PATIENCE_S)
        average = self.round.assembly.gradient(action.record.record)
        assert isinstance(average, np.ndarray), f"missing: {average}"
        await self._take(e.Applied(action.job, f"{zlib.crc32(average.data):016x}"))

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        match body:
            case Frame():
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


def main(folder: str, peer: str, control: str, elements: str, unit_s: str = "0") -> None:
    """Contribute until ended."""
    leave_with_parent()
    access = OwnAccess(Path(folder), PeerId(peer), Role.TRAINER, control)
    asyncio.run(Contributor(access, grid_of(int(elements)), float(unit_s)).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
