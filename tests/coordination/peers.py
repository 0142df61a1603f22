"""Scripted peers on the site's real sockets. The peers follow the protocol and compute nothing."""

import asyncio
import hashlib
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.log.records import RecordHead, read_head
from peer_agent.protocol.relay import advance as relay
from peer_agent.protocol.relay import events as relays
from peer_agent.protocol.relay.opened import OpenPlan, open_message
from peer_agent.protocol.relay.state import Keeper, RelayState
from peer_agent.protocol.relay.state import Reducer as RelaysReducer
from peer_agent.protocol.session import Failed, Identity
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer import speaking
from peer_agent.protocol.trainer.advance import advance, heard
from peer_agent.protocol.trainer.state import new_trainer
from tests.coordination.peer_link import Closed, PeerLink, linked

TICK_S = 0.5
SQUARES = 1e-3  # sum of squares of every span, where each gradient has norm 1


def record_in(commit: m.Commit) -> RecordHead:
    return read_head(commit.record)


class Peer(ABC):
    """A peer that reacts to the site until its link ends. `refused` holds the code of a refusal."""

    def __init__(self, link: PeerLink, run: RunId) -> None:
        self.link, self.run = link, run
        self.accumulator = AccumulatorId(secrets.token_hex(16))
        self.fences: list[int] = []
        self.records: list[RecordHead] = []
        self.states: list[str] = []
        self.refused = ""

    async def live(self) -> None:
        try:
            while not isinstance(body := await self.link.hear(), Failed):
                await self.handle(body)
            self.refused = body.fault.code
        except Closed:
            return

    async def handle(self, body: m.AnyMessage) -> None:
        match body:
            case m.Rehello():
                self.fences.append(body.fence)
                await self.hello()
            case m.State():
                self.states.append(body.state)
            case m.Commit():
                await self.commit(body)

    async def commit(self, commit: m.Commit) -> None:
        """Store the record if it is the next one. If records are missing, say hello to get them."""
        record, last = record_in(commit), len(self.records)
        if record.index == last + 1:
            self.records.append(record)
        elif record.index > last + 1:
            await self.hello()

    @abstractmethod
    async def hello(self) -> None:
        pass


class Reducer(Peer):
    """A relay with the shipped core. It pretends to have every chunk at once, and invents the roots of spans."""

    def __init__(self, link: PeerLink, run: RunId) -> None:
        super().__init__(link, run)
        me = PeerId(link.session.identity.name)
        self.core = RelayState(run=run, me=me, url="ws://127.0.0.1:1/", reducer=RelaysReducer(), keeper=Keeper())

    async def live(self) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            await super().live()
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])

    async def _tick(self) -> None:
        with suppress(Closed):
            while True:
                await asyncio.sleep(TICK_S)
                await self._happens(relays.Ticked())

    async def hello(self) -> None:
        await self.link.say(relay.hello(self.core))

    async def handle(self, body: m.AnyMessage) -> None:
        """Decode the site's message as a relay's process does, and pass it to the core."""
        if isinstance(body, m.Rehello):
            self.fences.append(body.fence)
        elif isinstance(body, m.State):
            self.states.append(body.state)
        assert isinstance(body, m.TO_PEER)
        await self._happens(relays.Heard(open_message(body, self.link.session.identity.site_key)))

    async def _happens(self, event: relays.Event) -> None:
        for action in relay.advance(self.core, event, asyncio.get_running_loop().time()):
            await self._do(action)

    async def _do(self, action: relays.Action) -> None:
        match action:
            case relays.Say():
                await self.link.say(action.message)
            case relays.Begin():
                await self._average(action.plan)
            case relays.WriteSpan(span=span):
                assert self.core.reducer is not None
                newest = self.core.reducer.newest
                await self._happens(relays.SpanWritten(newest, span.span, _root(newest.step, span.span), SQUARES))
            case relays.Append():
                record = read_head(action.sealed.head)
                if record.index == len(self.records) + 1:
                    self.records.append(record)
                await self._happens(relays.Appended(len(self.records)))
            case relays.Scan():
                await self._happens(relays.Scanned(action.stop, ()))

    async def _average(self, plan: OpenPlan) -> None:
        for span in plan.given_to(self.core.me).values():
            for chunk in range(span.first, span.stop):
                for slot in range(len(plan.slots)):
                    await self._happens(relays.ChunkAdded(plan.place, slot, chunk))


class Contributor(Peer):
    """A trainer with the shipped core. The trainer completes every action of the core at once and computes nothing."""

    def __init__(self, link: PeerLink, run: RunId) -> None:
        super().__init__(link, run)
        self.core = new_trainer(run, PeerId(link.session.identity.name), time.monotonic(), secrets.randbits(128))
        self.snapshots_asked: list[int] = []

    async def live(self) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            await super().live()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self.happens(e.Ticked())

    async def hello(self) -> None:
        """Do nothing, because the core says hello when the site asks for it."""

    async def commit(self, commit: m.Commit) -> None:
        """Do nothing, because the core stores the record."""

    async def report(self) -> None:
        for action in speaking.report(self.core, at_once=True):
            await self._carry(action)

    async def handle(self, body: m.AnyMessage) -> None:
        await super().handle(body)
        if isinstance(body, m.Commit) and body.snapshot:
            self.snapshots_asked.append(record_in(body).step)
        await self.happens(heard(body, self.link.session.identity.site_key, self.core.me))  # type: ignore[arg-type]

    async def happens(self, event: e.Event) -> None:
        events = deque([event])
        while events:
            for action in advance(self.core, events.popleft(), time.monotonic(), secrets.randbits(128)):
                events.extend(await self._carry(action))

    async def _carry(self, action: e.Action) -> tuple[e.Event, ...]:
        match action:
            case e.Say():
                await self.link.say(action.message)
            case e.Load():
                return (e.Loaded(action.job, _digest(action.snapshot.step)),)
            case e.Apply():
                self.records.append(action.record.record)
                return (e.Applied(action.job, _digest(action.record.step)),)
            case e.Compute():
                assert self.core.recipe is not None
                (unit,) = action.units
                _, tokens = self.core.recipe.loss_units_in(unit.samples)
                return (e.Computed(action.job, 2.5 * tokens, (tokens,), self.core.step),)
            case e.Freeze():
                return (e.Frozen(action.job, hashlib.sha256(repr(self.core.done).encode()).digest(), 1.0),)
            case e.Send():
                plan = action.plan.plan
                spans = sorted(plan.spans, key=lambda span: span.first)
                roots = [span.root or _root(plan.step, span.span) for span in spans]
                return (e.Gathered(plan.attempt, root_of([Leaf(root, SQUARES) for root in roots]), ()),)
            case _:
                pass  # these actions need tensors, threads or a display
        return ()


def _root(step: int, span: int) -> bytes:
    return hashlib.sha256(f"{step} {span}".encode()).digest()


def _digest(step: int) -> str:
    return hashlib.sha256(f"state {step}".encode()).hexdigest()[:16]


@asynccontextmanager
async def taking_part(kind: type[Peer], identity: Identity, run: RunId) -> AsyncIterator[Peer]:
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
