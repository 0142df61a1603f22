"""Attacks by a stranger without a credential: incomplete requests, endless headers, silent sockets, large bodies."""

import asyncio
import contextlib
import secrets
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from websockets.asyncio.client import connect

from peer_agent.network.site import upload
from peer_agent.protocol.errors import Problem
from peer_agent.site.credential import RunAccess

LOST = (OSError, asyncio.IncompleteReadError, EOFError)
HALVES, HEADERS, SILENT, BODIES = 200, 50, 65, 8
BODY = 200_000_000  # bytes that the request announces
PIECE = bytes(65_536)
PAUSE_S = 0.2


class Ground(Struct):
    """The target of an attack: the site's address, the run's slug, and a known machine for attacks that need one."""

    url: str
    slug: str
    access: RunAccess
    account: Counter[str]


class Visit(Struct, frozen=True):
    """An attack: its name, the weakness of the site that it would exploit, and the action to repeat."""

    name: str
    fault: str
    count: int
    act: Callable[[Ground], Awaitable[None]]


async def _talk(ground: Ground, *, head: bytes, more: bytes, pause_s: float) -> None:
    """Send `head` on a socket, then send `more` repeatedly until the site closes the connection."""
    parts = urlsplit(ground.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    ground.account["opened"] += 1
    try:
        writer.write(head)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            if more:
                writer.write(more)
                await writer.drain()
            await asyncio.wait([ended], timeout=pause_s)
        ground.account["closed by the site"] += 1
        ground.account[f"answered {ended.result()[:12].decode(errors='replace')}"] += 1
    finally:
        writer.close()


async def _half_request(ground: Ground) -> None:
    await _talk(ground, head=b"GET / HTTP/1.1\r\nHost: localhost\r\n", more=b"", pause_s=60.0)


async def _endless_headers(ground: Ground) -> None:
    line = b"X-Filler: " + b"a" * 500 + b"\r\n"
    await _talk(ground, head=b"GET / HTTP/1.1\r\nHost: localhost\r\n", more=line, pause_s=PAUSE_S)


async def _big_body(ground: Ground) -> None:
    head = f"POST /api/v1/machines HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY}\r\n\r\n"
    await _talk(ground, head=head.encode(), more=PIECE, pause_s=0.01)


async def _silent_socket(ground: Ground) -> None:
    """Open a socket that stays silent. A header like a trusted proxy's gives all such sockets the same source
    address."""
    address = f"{ground.url.replace('http', 'ws', 1)}/ws/agents/"
    async with connect(address, additional_headers={"X-Forwarded-For": "203.0.113.5"}, proxy=None) as socket:
        ground.account["opened"] += 1
        await socket.recv()
        await socket.wait_closed()
        ground.account["closed by the site"] += 1


async def _unasked_upload(ground: Ground) -> None:
    """Upload noise as the run's state, from a machine that the coordinator did not choose for the upload."""
    await ground.access.renew()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        path.write_bytes(secrets.token_bytes(1_000_000))
        url = f"{ground.access.site.url}/api/v1/runs/{ground.slug}/snapshots/1"
        try:
            await upload(url, path, ground.access.headers())
            ground.account["taken"] += 1
        except Problem as problem:
            ground.account[f"refused {problem.fault.code}"] += 1
    await asyncio.sleep(PAUSE_S)


VISITS = (
    Visit("half_requests", "half requests that live for ever", HALVES, _half_request),
    Visit("endless_headers", "endless headers", HEADERS, _endless_headers),
    Visit("sockets_of_one_address", "the 65th machine behind one proxy is never served", SILENT, _silent_socket),
    Visit("big_bodies", "500 MB spooled before anybody asks who it is", BODIES, _big_body),
    Visit("uploads_a_snapshot_unasked", "any account replaces the released model", 1, _unasked_upload),
)


async def visit(what: Visit, ground: Ground, seconds: float) -> Counter[str]:
    async def again() -> None:
        while True:
            try:
                await what.act(ground)
            except LOST as error:
                ground.account[type(error).__name__] += 1
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(again()) for _ in range(what.count)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return ground.account
