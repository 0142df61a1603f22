"""The hostile puppet over real links: the rig's contributor, which alters its messages to the site according to its
behaviour.

The behaviours are those of `tests/hostile`. The puppet sends noise to relays, which cannot tell noise from real
gradients."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed

from peer_agent.averaging.contributor import Accumulator
from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import open_plan
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import heard
from peer_agent.protocol.trainer.state import new_trainer
from peer_agent.protocol.wire import Frame, encode
from peer_agent.site.credential import RunAccess
from tests.benchmarks.rig.contributor import Contributor
from tests.hostile.behaviours import TICK_S, Behaviour, Memory, Word

BACK_S = 1.0  # the puppet ignores the site's hints, and reconnects after this many seconds
UNIT_S = 0.1  # seconds per computed unit
AWAY_S = 1.0
ENDED = (LinkLost, Refused, Problem, ConnectionError, TimeoutError)


class Puppet(Contributor):
    """One process of one machine. `account` counts messages sent and received, and the reasons why its links ended."""

    def __init__(self, access: RunAccess, behaviour: Behaviour, account: Counter[str]) -> None:
        super().__init__(access, grid_of(1))
        self.behaviour, self.account = behaviour, account
        self.core = new_trainer(access.run, access.peer, time.monotonic(), secrets.randbits(128))
        self.memory = Memory(run=access.run, me=access.peer, chance=Random(access.peer), core=self.core)
        self.units_left = behaviour.computes

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._live()
                except ENDED as error:
                    code = error.fault.code if isinstance(error, Refused | Problem) else type(error).__name__
                    self.account[f"refused {code}"] += 1
                await asyncio.sleep(BACK_S)
        finally:
            for job in self._jobs:
                job.cancel()
            await self.links.close()

    async def _live(self) -> None:
        await self.access.renew()
        self.site = await self.access.dial_control()
        ends = [self._listen(self.site), self._tick()]
        if self.behaviour.link in {"comes and goes", "copied home"}:
            ends.append(asyncio.sleep(AWAY_S))
        tasks = [asyncio.ensure_future(end) for end in ends]
        try:
            await self._take(e.Linked())
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.account["went"] += 1
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.site.close()

    async def _listen(self, site: Connection) -> None:
        while True:
            body: Any = await site.receive()
            name = f"{type(body).__name__} {body.code}" if isinstance(body, m.Notice) else type(body).__name__
            self.account[f"told {name}"] += 1
            await self._take(heard(body, self.access.site_key, self.access.peer))
            known = (
                open_plan(body, self.access.site_key, self.access.peer).plan if isinstance(body, m.Planned) else body
            )
            self.memory.hear(known)
            await self._post(self.behaviour.answers(self.memory, known))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._take(e.Ticked())
            self.memory.ticks += 1
            await self._post(self.behaviour.adds(self.memory))

    async def _post(self, words: Iterable[Word]) -> None:
        """Send messages as bytes, even if the site cannot decode them."""
        for word in words:
            self.account["said"] += 1
            data = word if isinstance(word, bytes) else encode(word)
            try:
                await self.site._socket.send(data)
            except ConnectionClosed as closed:
                raise LinkLost(str(closed)) from closed

    # --- the actions of its core

    async def _carry(self, action: e.Action) -> None:
        match action:
            case e.Say():
                words = list(self.behaviour.says(self.memory, action.message))
                self.account["changed"] += words != [action.message]
                await self._post(words)
            case e.Load():
                self._become(action.greeting)
                self._start(self._load(action))
            case e.Renew() | e.Discard():
                self.accumulator = Accumulator(self.grid)
            case e.Release():
                self._let_go()
            case e.Settle():
                self._let_go()
                self.accumulator = Accumulator(self.grid)
            case e.HashState():
                await self._take(e.Hashed(action.index, action.step, "0" * 64, 1))
            case e.Send() if self.behaviour.chunks_per_s == 0:
                pass
            case e.Warn() | e.Began() | e.Quit() | e.HandIn():
                self.account[type(action).__name__] += 1
            case _:
                await super()._carry(action)

    def _become(self, greeting: m.Greeting) -> None:
        self.grid = grid_of(greeting.elements)
        self.accumulator = Accumulator(self.grid)
        self.noise = np.random.default_rng(1).standard_normal(self.grid.elements, dtype=np.float32) * np.float32(1e-3)

    def _let_go(self) -> None:
        if self.round is not None:
            self.round.stop()
        self.round = None
        if self.accumulator.sending is not None:
            self.accumulator.release()

    async def _load(self, action: e.Load) -> None:
        await self._take(e.Loaded(action.job, ""))

    async def _compute(self, action: e.Compute) -> None:
        if self.units_left is not None:
            if self.units_left <= 0:
                return  # this behaviour never answers
            self.units_left -= 1
        await asyncio.sleep(UNIT_S)
        if self.accumulator.sending is None:
            await super()._compute(action)

    async def _freeze(self, action: e.Freeze, round_: Any) -> None:
        await super()._freeze(action, round_)
        if self.behaviour.damaged and round_.sending is not None:
            payloads = round_.sending.payloads
            payloads[:] = [bytes(len(payload)) for payload in payloads]

    async def _apply(self, action: e.Apply) -> None:
        await self._take(e.Applied(action.job, ""))

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        if isinstance(body, m.SlotRefused):
            self.account["told SlotRefused"] += 1
        else:
            await super()._hear_relay(peer, body)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.account[f"job {type(error).__name__}"] += 1


async def play(accesses: list[RunAccess], behaviour: Behaviour, seconds: float) -> Counter[str]:
    account: Counter[str] = Counter()
    twice = 2 if behaviour.link in {"copied home", "two sockets"} else 1
    tasks = [asyncio.create_task(Puppet(access, behaviour, account).run()) for access in accesses * twice]
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return account
