"""`python -m tests.benchmarks.rig.contributor FOLDER PEER CONTROL ELEMENTS`: an agent's round without its torch.

Sums, codec, links, sending order and assembly are the agent's own; the gradient is noise, and no step is made of it.
"""

import asyncio
import hashlib
import sys
from pathlib import Path

import msgspec
import numpy as np

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.contributor import Accumulator, included_of
from peer_agent.contributing import OpenRound, contribute
from peer_agent.data_links import DataLinks
from peer_agent.network.link import Connection
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.records import Unit, open_record
from peer_agent.protocol.wire import Frame
from tests.benchmarks.rig.passports import OwnPassport
from tests.benchmarks.rig.processes import leave_with_parent
from tests.protocol.cast import RUN

PATIENCE_S = 30.0
TOKENS = 1024  # a power of two, so that the mean of what is summed is what was drawn


class Contributor:
    """Follows the coordinator from cut to commit, again and again."""

    def __init__(self, passport: OwnPassport, grid: Grid) -> None:
        self.passport, self.grid = passport, grid
        self.links = DataLinks(passport, self._hear_relay)
        self.accumulator = Accumulator(AccumulatorId(passport.peer), grid)
        noise = np.random.default_rng(int(passport.peer, 16)).standard_normal(grid.elements, dtype=np.float32)
        self.gradient_sum = noise * np.float32(TOKENS)
        self.round: OpenRound | None = None

    async def run(self) -> None:
        """Until ended."""
        await self.passport.renew()
        site = await self.passport.dial_control()
        await site.send(m.Hello(run=RUN, accumulator=self.accumulator.id))
        while True:
            body = await site.receive()
            match body:
                case m.Relays():
                    await self._link(site, body)
                case m.Cut():
                    await self._offer(site, body)
                case m.Planned():
                    self._contribute(body)
                case m.Commit():
                    await self._finish(site, body)

    async def _link(self, site: Connection, relays: m.Relays) -> None:
        """Dial all relays; the hello says that they are reached."""
        self.links.follow(relays.relays)
        while len(self.links.open) < len(relays.relays):  # noqa: ASYNC110 (a dictionary cannot be awaited)
            await asyncio.sleep(0.01)
        await site.send(m.Hello(run=RUN, accumulator=self.accumulator.id))

    async def _offer(self, site: Connection, cut: m.Cut) -> None:
        self.round = OpenRound(cut, Assembly(self.grid, cut.codec))
        unit = m.DoneUnit(Unit(0, 0, 4 * cut.step, 4 * cut.step + 4), cut.step)
        self.accumulator.add(self.gradient_sum, TOKENS, 2.5 * TOKENS, [unit])
        self.round.sending = await asyncio.to_thread(self.accumulator.offer, cut.codec)
        await site.send(self.round.sending.message(cut.run, cut.step, cut.fence, cut.attempt))

    def _contribute(self, planned: m.Planned) -> None:
        assert self.round is not None
        plan = msgspec.msgpack.decode(planned.plan.payload, type=m.Plan)
        self.round.follow(plan, self.passport.peer)
        self.round.task = asyncio.create_task(contribute(self.round, self.links))

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        assert self.round is not None
        match body:
            case Frame():
                if self.round.take(body):
                    self.round.arrived.set()
            case m.Open():
                self.round.opened(peer, body)
            case m.SlotRefused():
                raise AssertionError(f"refused: {body}")

    async def _finish(self, site: Connection, commit: m.Commit) -> None:
        """Say first that the whole average is here and is what the record names; then, unhurried, which it is."""
        assert self.round is not None
        record = open_record(commit.record, self.passport.site_key)
        await self.round.settle(record, PATIENCE_S)
        average = self.round.assembly.gradient(record)
        assert isinstance(average, np.ndarray), f"missing: {average}"
        mine = self.accumulator.id
        await site.send(
            m.Report(run=RUN, accumulator=mine, done=(), loss_tokens=0, loss_sum=0.0, step=record.step, digest="")
        )
        _, _, slot = self.round.material()
        self.accumulator.settle(included_of(record, slot))
        self.round.stop()
        self.round = None
        await site.send(m.Hello(run=RUN, accumulator=mine, digest=hashlib.sha256(average.data).hexdigest()[:16]))


def main(folder: str, peer: str, control: str, elements: str) -> None:
    """Contribute until ended."""
    leave_with_parent()
    passport = OwnPassport(Path(folder), PeerId(peer), Role.TRAINER, control)
    asyncio.run(Contributor(passport, grid_of(int(elements))).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
