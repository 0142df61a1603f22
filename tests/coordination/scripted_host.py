"""A real host with a claimed run and real sockets, around a scripted coordinator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.layers import get_channel_layer

from coordination import store
from coordination.channel_layer.messages import PeerSaid
from coordination.channel_layer.process import HOST
from coordination.hosts import host
from coordination.hosts.claims import hold
from coordination.hosts.host import Host
from coordination.hosts.quarantine import Quarantine
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import encode
from tests.coordination.engines import PATIENCE_S, fresh_database, use_layer
from tests.coordination.example_run import ACCUMULATOR, Example, example_run

TEO, NOOR = PeerId("0a" * 16), PeerId("0b" * 16)


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any, settings: Any) -> Any:
    use_layer("memory", request, settings)
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


class Script:
    """A replacement for `advance` that records events and returns scripted commands."""

    def __init__(self) -> None:
        self.events: list[e.Event] = []
        self.answer: Callable[[e.Event], list[e.Command]] = lambda _: []

    def __call__(self, state: Any, event: e.Event, now: float, seed: int) -> list[e.Command]:
        self.events.append(event)
        return self.answer(event)

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()
    monkeypatch.setattr(host, "advance", found)
    return found


@pytest.fixture
async def driven(example: Example) -> AsyncIterator[Host]:
    """Yield a host that has claimed the run. Nothing drives the host yet."""
    layer: Any = get_channel_layer()
    with ThreadPoolExecutor(2) as threads:
        held = await hold(example.run, await layer.new_channel(HOST), threads)
        assert held is not None
        held.clock, held.asked_at = Clock(), 0.0  # the claim never expires by itself
        yield Host(example.run, held, await in_thread(store.load)(example.run, held.fence), Quarantine())


@asynccontextmanager
async def driving(driven: Host) -> AsyncIterator["asyncio.Task[None]"]:
    stop = asyncio.Event()
    task = asyncio.create_task(driven.drive(stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait([task], timeout=PATIENCE_S)
    assert task.done()


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - what a host does has no event to wait for
            await asyncio.sleep(0.005)


def said(peer: PeerId, body: m.Message, channel: str, role: Role = Role.TRAINER) -> PeerSaid:
    """Return a peer's message in the form in which a consumer forwards it to the host."""
    return PeerSaid(peer, channel, encode(body), "Teo", "laptop", role)


def hello(driven: Host) -> m.Hello:
    return m.Hello(run=driven.run.run_id, accumulator=ACCUMULATOR)


async def arrived(driven: Host, *peers: PeerId) -> list[str]:
    """Open a channel for each peer, say hello to the host on it, and return the channels."""
    channels = []
    for peer in peers:
        channels.append(await driven.layer.new_channel())
        await driven.layer.send(driven.holding.owner, said(peer, hello(driven), channels[-1]))
    return channels


async def heard(driven: Host, channel: str) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await driven.layer.receive(channel)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
