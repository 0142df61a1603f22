"""`python -m tests.benchmarks.rig.trainer FOLDER PEER CONTROL SECONDS FURTHER [ADDRESS]`: the agent, without a model.

Links, rounds, clocks, catching up and carrying over are the agent's own. Its gradient is noise that takes as long as it
is told, and of averages no step is made; so there is no torch in this process.
"""

import asyncio
import contextlib
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.contributor import Accumulator
from peer_agent.display.lines import View
from peer_agent.machine.limits import Limits
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer import events as e
from peer_agent.relay.place import Place
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.averages import assembly_of, gather
from peer_agent.trainer.round import OpenRound
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent
from tests.benchmarks.rig.tally import count_into

MOST_JOBS = 10_000
LINKED_S = 20.0  # at most, before it begins without some of those who listen


class Noise:
    """An agent's jobs where there is no model (`peer_agent.trainer.jobs`)."""

    accumulator: Accumulator
    noise: Floats

    def __init__(self, agent: Agent, unit_s: float, further_s: float) -> None:
        """`unit_s`: seconds in which a unit is computed; `further_s`: the same of a second one of the same step."""
        self.agent, self.unit_s, self.further_s, self.speed = agent, unit_s, further_s, 0.0
        self._digest = 0  # over the averages of all updates, in their order
        self._tokens = self._fresh = 0  # of the unit that was computed last; of what was never offered
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue(MOST_JOBS)
        self._busy = asyncio.Lock()  # with staleness 1 an update waits for the unit that was begun
        self._waiting: e.Compute | None = None  # for the next cut, with staleness 1
        self._worked_at, self._cuts = -1, 0

    async def run(self) -> None:
        """One job after another."""
        while True:
            await (await self._jobs.get())()

    def add(self, job: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Do this after everything that was asked before."""
        self._jobs.put_nowait(partial(job, *arguments))

    # --- the state, which there is not

    async def load(self, action: e.Load) -> None:
        """Ready once everybody who listens is linked, so that the first round has all of them."""
        others = {listener.peer for listener in action.greeting.listeners} - {self.agent.access.peer}
        until = time.monotonic() + LINKED_S
        while not others <= self.agent.links.open.keys() and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # a dictionary cannot be awaited
        grid, seed = grid_of(action.greeting.elements), int(self.agent.access.peer, 16)
        self.noise = np.random.default_rng(seed).standard_normal(grid.elements, dtype=np.float32)
        self.accumulator, self._digest = Accumulator(grid), 0
        self.agent.handle(e.Loaded(action.job, ""))

    async def fetch(self, action: e.Apply, round_: OpenRound | None) -> None:
        """Beside the jobs: have an update's averages, those that came in `round_` where it is theirs."""
        record = action.record.record
        assembly = await assembly_of(record, round_)
        if await gather(self.agent.links, record, assembly, patient=action.patient) is None:
            self.agent.handle(e.BytesMissing(action.job))
        else:
            self.add(self.apply, action)

    async def apply(self, action: e.Apply) -> None:
        """The averages are those under the record's roots, by which the digest names them and all before them."""
        if self.agent.core.job == action.job:
            self._digest = zlib.crc32(repr(action.record.record.spans).encode(), self._digest)
            async with self._busy:
                pass
            self.agent.handle(e.Applied(action.job, f"{self._digest:016x}"))

    async def hand_in(self) -> None:
        """No snapshot is asked for."""

    async def hash_state(self) -> None:
        """The same."""

    async def publish(self, record: object) -> None:
        """There is nothing to publish."""

    # --- gradients

    async def compute(self, action: e.Compute) -> None:
        """Begin it, and go on: a cut does not wait for the unit in hand."""
        self.agent.start(self._compute(action))

    async def _compute(self, action: e.Compute) -> None:
        """A further unit may come late: whoever is behind gives one first, so that all are in every round; where
        somebody sits out, the batch is full nevertheless."""
        core = self.agent.core
        place, base = self._cuts if core.overlaps else core.step, core.step
        is_further = self.unit_s > 0 and self._worked_at == place
        if is_further and core.overlaps:
            self._waiting = action
            return
        self._worked_at = place
        async with self._busy if core.overlaps else contextlib.nullcontext():
            await asyncio.sleep(self.further_s if is_further else self.unit_s)
        if core.in_hand is None or core.in_hand.job != action.job:
            return  # the round was cut meanwhile
        assert core.recipe is not None
        _, self._tokens = core.recipe.tokens_in(action.unit.samples)  # a power of two: the mean is what was drawn
        self.agent.handle(e.Computed(action.job, 2.5 * self._tokens, self._tokens, base))

    async def change(self, action: e.Action) -> None:
        """What is held, and what was never offered: of that the tokens are enough to make it."""
        match action:
            case e.Keep():
                self._fresh += self._tokens
            case e.Discard():
                self._fresh = 0
            case e.DiscardHeld():
                self.accumulator = Accumulator(self.accumulator.grid)
            case e.Renew():
                self._fresh, self.accumulator = 0, Accumulator(self.accumulator.grid)
            case e.Hold():
                await self._hold()
            case e.Release() if self.accumulator.sending is not None:
                self.accumulator.release()
            case e.Settle() if self.accumulator.sending is not None:
                await asyncio.to_thread(self.accumulator.remove_averaged, action.included)

    async def freeze(self, action: e.Freeze, round_: OpenRound) -> None:
        """Encode what is held, for the offer."""
        await self._hold()
        offered = await asyncio.to_thread(self.accumulator.offer, action.cut.codec, action.weights)
        round_.sending = offered
        self.agent.handle(e.Frozen(action.job, offered.root, offered.norm))

    async def _hold(self) -> None:
        self._cuts += 1
        if self._waiting is not None:
            self.agent.start(self._compute(self._waiting))
            self._waiting = None
        if self.accumulator.sending is None and self._fresh:
            tokens, self._fresh = self._fresh, 0
            await asyncio.to_thread(self._add, tokens)

    def _add(self, tokens: int) -> None:
        self.accumulator.add(self.noise * np.float32(tokens))


def main(folder: str, peer: str, control: str, *more: str) -> None:
    """Count what goes over its links, and take part until ended; with an address, others can dial it there."""
    unit_s, further_s, *address = more
    leave_with_parent()
    count_into(Path(folder))
    access = OwnAccess(Path(folder), PeerId(peer), Role.TRAINER, control)
    limits, place = Limits(threads=1, reserve_percent=0), Place(address[0]) if address else None
    with Path(folder, "words").open("w") as words:
        jobs = partial(Noise, unit_s=float(unit_s), further_s=float(further_s))
        asyncio.run(Agent(access.home, access, limits, View(words), place, jobs=jobs).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
