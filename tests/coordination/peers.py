"""Scripted peers on real sockets of the site: they hold, offer, reduce and settle as real ones, and compute nothing."""

import asyncio
import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from peer_agent.protocol import messages as m
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, RunId
from peer_agent.protocol.records import Included, Record, Unit
from peer_agent.protocol.session import Failed, Identity
from tests.coordination.dialler import Closed, Dialler, linked
from tests.runs.cast import ELEMENTS, RECIPE

CHUNKS = grid_of(ELEMENTS).chunks
TOKENS = RECIPE.model.context - 1


def record_in(commit: m.Commit) -> Record:
    """What a commit message carries."""
    return msgspec.json.decode(commit.record.payload, type=Record)


class Peer(ABC):
    """Reacts to the site until its link ends; `refused` says why, where it was refused."""

    def __init__(self, link: Dialler, run: RunId) -> None:
        self.link, self.run = link, run
        self.accumulator = AccumulatorId(secrets.token_hex(16))
        self.fences: list[int] = []
        self.records: list[Record] = []
        self.states: list[str] = []
        self.refused = ""

    async def live(self) -> None:
        """Take one message after another."""
        try:
            while not isinstance(body := await self.link.hear(), Failed):
                await self.take(body)
            self.refused = body.fault.code
        except Closed:
            return

    async def take(self, body: m.AnyMessage) -> None:
        """What both kinds do alike."""
        match body:
            case m.Rehello():
                self.fences.append(body.fence)
                await self.hello()
            case m.State():
                self.states.append(body.state)
            case m.Commit():
                await self.commit(body)

    async def commit(self, commit: m.Commit) -> None:
        """Records come in order; one that was missed is asked for by hello."""
        record, last = record_in(commit), len(self.records)
        if record.index == last + 1:
            self.records.append(record)
        elif record.index > last + 1:
            await self.hello()

    @abstractmethod
    async def hello(self) -> None:
        """Everything it holds."""


class Reducer(Peer):
    """A relay: every span it is planned is done at once, under a made-up root."""

    async def hello(self) -> None:
        """Where it listens and how far its log goes."""
        await self.link.say(
            m.Hello(run=self.run, accumulator=self.accumulator, url="ws://127.0.0.1:1/", log_index=len(self.records))
        )

    async def take(self, body: m.AnyMessage) -> None:
        """Also a plan."""
        await super().take(body)
        if isinstance(body, m.Planned):
            plan = msgspec.msgpack.decode(body.plan.payload, type=m.Plan)
            for span in plan.spans:
                if span.reducer == self.link.session.identity.name:
                    await self.link.say(self._done(plan, span))

    def _done(self, plan: m.Plan, span: m.PlannedSpan) -> m.SpanDone:
        everybody = Included(span.first, span.stop, tuple(range(len(plan.slots))))
        return m.SpanDone(
            run=plan.run,
            step=plan.step,
            fence=plan.fence,
            attempt=plan.attempt,
            span=span.span,
            root=hashlib.sha256(f"{plan.step} {span.span}".encode()).digest(),
            sum_squares=1.0,
            included=(everybody,),
        )


class Contributor(Peer):
    """A trainer whose units are done as soon as they are leased."""

    def __init__(self, link: Dialler, run: RunId) -> None:
        super().__init__(link, run)
        self.undone: list[Unit] = []
        self.done: dict[Unit, int] = {}
        self.quota = 0
        self.is_replica = False
        self.hello_at = -1
        self.cut: m.Cut | None = None  # of the open round: nothing is computed in it
        self.snapshots_asked: list[int] = []

    @property
    def step(self) -> int:
        """Of its replica."""
        return len(self.records) if self.is_replica else -1

    def _done_units(self) -> tuple[m.DoneUnit, ...]:
        return tuple(m.DoneUnit(unit, base) for unit, base in sorted(self.done.items()))

    def _loss_tokens(self) -> int:
        return TOKENS * sum(unit.samples for unit in self.done)

    async def hello(self) -> None:
        """Its accumulator, its leases, its step."""
        await self.link.say(
            m.Hello(
                run=self.run,
                accumulator=self.accumulator,
                done=self._done_units(),
                undone=tuple(self.undone),
                step=self.step,
                log_index=self.step,
            )
        )

    async def report(self) -> None:
        """Progress, and a digest on which all replicas agree."""
        digest = hashlib.sha256(f"state {self.step}".encode()).hexdigest()[:16]
        await self.link.say(
            m.Report(
                run=self.run,
                accumulator=self.accumulator,
                done=self._done_units(),
                loss_tokens=self._loss_tokens(),
                loss_sum=2.5 * self._loss_tokens(),
                step=self.step,
                digest=digest,
            )
        )

    async def take(self, body: m.AnyMessage) -> None:
        """Also leases and cuts."""
        await super().take(body)
        match body:
            case m.Greeting() if not self.is_replica:
                self.is_replica = True  # it begins at step 0 and gets the commits since
                await self.hello()
            case m.Greeting() if body.reconciled:
                if self.cut is not None and self.cut.fence < body.fence:
                    self.cut = None  # the host that had cut is gone
                await self.work()
            case m.Greeting():
                self.hello_at = body.step  # its leases are judged once it knows which of them are in updates
            case m.Lease() if body.fence >= self.fences[-1]:
                self.undone += body.units
                self.quota = body.quota
                await self.work()
            case m.Cut() if body.step == self.step and body.fence >= self.fences[-1]:
                self.cut = body
                await self._offer(body)
            case m.Void():
                self.cut = None
                await self.work()
            case m.AccumulatorRevoked() if body.accumulator == self.accumulator:
                self.done, self.undone, self.cut = {}, [], None
                self.accumulator = AccumulatorId(secrets.token_hex(16))
                await self.hello()

    async def work(self) -> None:
        """Do leased units up to the quota, and say so; not in a round."""
        if self.cut is not None:
            return
        while self.undone and sum(unit.samples for unit in self.done) < self.quota:
            self.done[self.undone.pop(0)] = self.step
        await self.report()

    async def _offer(self, cut: m.Cut) -> None:
        await self.link.say(
            m.Offer(
                run=cut.run,
                step=cut.step,
                fence=cut.fence,
                attempt=cut.attempt,
                accumulator=self.accumulator,
                units=self._done_units(),
                weights=(m.Weight(0, CHUNKS, self._loss_tokens()),),
                loss_tokens=self._loss_tokens(),
                loss_sum=2.5 * self._loss_tokens(),
                norm=1.0,
                root=hashlib.sha256(repr(sorted(self.done)).encode()).digest(),
            )
        )

    async def commit(self, commit: m.Commit) -> None:
        """What was averaged in is no longer held; the rest is done again on the new parameters."""
        before = self.step
        await super().commit(commit)
        if commit.snapshot:
            self.snapshots_asked.append(record_in(commit).step)
        if self.step == before:
            return
        for part in self.records[-1].contributions:
            for unit in part.units if part.accumulator == self.accumulator else ():
                self.done.pop(unit, None)
        self.undone, self.done, self.cut = [*self.done, *self.undone], {}, None
        if 0 <= self.hello_at <= self.step:
            self.hello_at = -1
            await self.hello()
        await self.work()


@asynccontextmanager
async def taking_part(kind: type[Peer], identity: Identity, run: RunId) -> AsyncIterator[Peer]:
    """A peer on an open link, alive until the block ends."""
    async with linked(identity) as link:
        peer = kind(link, run)
        life = asyncio.create_task(peer.live())
        try:
            yield peer
        finally:
            life.cancel()
            await asyncio.wait([life])
            if not life.cancelled():
                life.result()
