"""Links on loopback: a listening relay and the trainers that dial it, with a stopped clock."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from peer_agent.network.link import Connection, LinkLost, Refused, dial
from peer_agent.network.relay_server import Server, serve_data
from peer_agent.protocol.credentials import Credential
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import FetchRecords, Records
from peer_agent.protocol.session import Identity, Link
from peer_agent.protocol.wire import Frame, Kind
from tests.protocol.identities import NOW, RELAY, RUN, relay, trainer

FETCH = FetchRecords(run=RUN, first=0)
NOTHING = Records(run=RUN, first=0, last=-1, records=())
PATIENCE_S = 60.0  # longest wait for an expected event; a passing test never waits this long


def at_now() -> float:
    return NOW


def frame(chunk: int = 0, size: int = 1000, kind: Kind = Kind.GRADIENT) -> Frame:
    return Frame(kind, RunId(RUN), 1, 1, 1, 0, chunk, 0, bytes([chunk % 256]) * size)


def anyone(_: Credential) -> Fault | None:
    return None


async def answer(link: Connection) -> None:
    while True:
        await link.receive()
        await link.send(NOTHING)


async def stay(link: Connection) -> None:
    while True:
        await link.receive()


@asynccontextmanager
async def listening(
    handle: Callable[[Connection], Awaitable[None]] = answer, port: int = 0, who: Identity | None = None, **kwargs: Any
) -> AsyncIterator[Server]:
    identity = who or relay()
    settings: dict[str, Any] = {"identity_of": lambda: identity, "admit": anyone, "clock": at_now} | kwargs
    server = await serve_data("127.0.0.1", port, handle=handle, **settings)
    try:
        yield server
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await server.close()


async def dial_relay(where: Server | int, who: Identity | None = None, **kwargs: Any) -> Connection:
    port = where if isinstance(where, int) else where.port
    settings: dict[str, Any] = {"server": RELAY, "version": "1", "clock": at_now} | kwargs
    return await dial(f"ws://127.0.0.1:{port}/", link=Link.DATA, identity=who or trainer(), **settings)


async def dial_encrypted(where: Server, fingerprint: str) -> Connection:
    settings: dict[str, Any] = {"server": RELAY, "version": "1", "clock": at_now, "fingerprint": fingerprint}
    return await dial(f"wss://127.0.0.1:{where.port}/", link=Link.DATA, identity=trainer(), **settings)


async def how_it_ends(link: Connection) -> LinkLost | Refused:
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await link.receive()
        except (LinkLost, Refused) as end:
            return end


async def turns(count: int = 50) -> None:
    """Run everything that is ready in the event loop, `count` times over."""
    for _ in range(count):
        await asyncio.sleep(0)
