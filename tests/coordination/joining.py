"""Measures how a new relay joins a long run over a real WebSocket: log pages, bytes and times."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from channels.routing import URLRouter
from msgspec import Struct

from coordination.channel_layer.process import site_layer
from coordination.hosts import writer
from coordination.sockets.consumer import SITE
from peer_agent.network.link import Connection, LinkLost, Refused, dial
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.relay import events as relays
from peer_agent.protocol.session import Failed, Identity, Link
from peer_agent.protocol.wire import encode
from server.asgi import sockets
from server.http_server import serve_http
from server.reachability import bound_socket
from tests.coordination.peer_link import Closed
from tests.coordination.peers import Reducer


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """Serve the site's agent sockets on a free port, as `serve` does, and yield the address."""
    stop, started = asyncio.Event(), asyncio.Event()
    with contextlib.closing(bound_socket("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(serve_http(URLRouter(sockets), bound, stop, started))
        try:
            await started.wait()
            yield f"ws://127.0.0.1:{bound.getsockname()[1]}/ws/agents/"
        finally:
            stop.set()
            await serving


class Wire:
    def __init__(self, connection: Connection) -> None:
        self.connection, self.session = connection, connection.session

    async def hear(self) -> m.AnyMessage | Failed:
        try:
            return await self.connection.receive()  # type: ignore[return-value]  # no frames on a control link
        except Refused as refused:
            return Failed(refused.fault, remote=refused.remote, retry_after_s=refused.retry_after_s)
        except LinkLost as lost:
            raise Closed(1006) from lost

    async def say(self, message: m.Message) -> None:
        try:
            await self.connection.send(message)
        except (LinkLost, Refused) as lost:
            raise Closed(1006) from lost


class NewRelay(Reducer):
    def __init__(self, link: Any, run: RunId) -> None:
        super().__init__(link, run)
        self.bytes = 0
        self.greeted = asyncio.Event()
        self.grown = asyncio.Condition()

    @property
    def index(self) -> int:
        assert self.core.keeper is not None
        return self.core.keeper.index

    async def handle(self, body: m.AnyMessage) -> None:
        await super().handle(body)
        if isinstance(body, m.Greeting):
            self.greeted.set()
        if isinstance(body, m.Commit):
            self.bytes += len(encode(body))
            async with self.grown:
                self.grown.notify_all()

    async def _do(self, action: relays.Action) -> None:
        if isinstance(action, relays.Append):
            assert action.index == self.index + 1, "in order, each once"
            await self._happens(relays.Appended(action.index))
        else:
            await super()._do(action)

    async def until(self, index: int) -> None:
        async with self.grown:
            await self.grown.wait_for(lambda: self.index >= index)


@asynccontextmanager
async def new_relay(url: str, identity: Identity, run: RunId) -> AsyncIterator[NewRelay]:
    connection = await dial(url, link=Link.CONTROL, identity=identity, server=SITE, version="1")
    relay = NewRelay(Wire(connection), run)
    life = asyncio.create_task(relay.live())
    try:
        yield relay
    finally:
        life.cancel()
        await asyncio.wait([life])
        await connection.close()
        if not life.cancelled():
            life.result()


class Page(Struct, frozen=True):
    """A page of the log that was sent: its recipient, first record, number of records, and bytes."""

    peer: PeerId
    first: int
    records: int
    bytes: int


@dataclass
class Seen:
    """The log pages that a host sent, and the longest queue for one socket."""

    pages: list[Page] = field(default_factory=list)
    most_waiting: int = 0  # largest number of messages that waited for one socket
    most_bytes: int = 0

    def of(self, peer: PeerId) -> list[Page]:
        return [page for page in self.pages if page.peer == peer]


@contextmanager
def watched(replace: Callable[[Any, str, Any], None]) -> Iterator[Seen]:
    """Record what this process's hosts send from now on. `replace` sets an attribute, as `monkeypatch.setattr` does."""
    seen, layer = Seen(), site_layer()
    read, send = writer.page_of, layer.send_many

    def page_of(run: Any, fence: int, command: Any) -> list[bytes]:
        page = read(run, fence, command)
        seen.pages.append(Page(command.peer, command.first, len(page), sum(map(len, page))))
        return page

    async def send_many(channels: Any, message: Any) -> list[str]:
        names = tuple(channels)
        lost = await send(names, message)
        for channel in (layer.channels[name] for name in names if name in layer.channels):
            seen.most_waiting = max(seen.most_waiting, len(channel))
            seen.most_bytes = max(seen.most_bytes, channel.bytes)
        return lost

    replace(writer, "page_of", page_of)
    replace(layer, "send_many", send_many)
    yield seen


class Joined(Struct, frozen=True):
    """Seconds until a new relay received its greeting, had the whole log, and received one further record."""

    greeted_s: float
    caught_up_s: float
    stepped_s: float


async def joins(relay: NewRelay, last: int) -> Joined:
    """Measure how long a relay takes to receive the log up to entry `last`, and one further record."""
    began = time.monotonic()
    await relay.greeted.wait()
    greeted_s = time.monotonic() - began
    await relay.until(last)
    caught_up_s = time.monotonic() - began
    await relay.until(last + 1)
    return Joined(greeted_s, caught_up_s, time.monotonic() - began)
