"""How much of a message the server takes, before any of our own code sees it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from peer_agent.protocol.messages import MAX_MESSAGE
from web.serving.ports import bound_socket
from web.serving.server import AGENTS, MAX_WORD, serve_http

TOO_BIG = 1009  # RFC 6455
PAGES = "/ws/runs/proverbs/"


async def counting(_: Any, receive: Any, send: Any) -> None:
    """Answers every message with its length."""
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        said = event.get("bytes") or event["text"].encode()
        await send({"type": "websocket.send", "text": str(len(said))})


@asynccontextmanager
async def linked(path: str, **options: Any) -> AsyncIterator[ClientConnection]:
    """A socket to the server as `serve` starts it."""
    stop, started = asyncio.Event(), asyncio.Event()
    with bound_socket("127.0.0.1", 0) as bound:
        bound.listen()
        serving = asyncio.create_task(serve_http(counting, bound, stop, started))
        await started.wait()
        host, port = bound.getsockname()[:2]
        try:
            async with connect(f"ws://{host}:{port}{path}", proxy=None, **options) as link:
                yield link
        finally:
            stop.set()
            await serving


@pytest.mark.parametrize(("path", "limit"), [(AGENTS, MAX_MESSAGE), (f"{AGENTS}?x", MAX_MESSAGE), (PAGES, MAX_WORD)])
@pytest.mark.parametrize("parts", [1, 4])
async def test_a_message_is_taken_up_to_its_limit_and_no_longer_one(path: str, limit: int, parts: int) -> None:
    async with linked(path, compression=None) as link:
        await link.send(pieces(limit, parts))
        assert await link.recv() == str(limit)
        with contextlib.suppress(ConnectionClosed):  # it may be noticed while we still send
            await link.send(pieces(limit + parts, parts))
        with pytest.raises(ConnectionClosed):
            await link.recv()
        assert link.close_code == TOO_BIG


async def test_what_is_packed_small_is_no_way_around_it() -> None:
    async with linked(PAGES) as link:
        assert any(extension.name == "permessage-deflate" for extension in link.protocol.extensions)
        with contextlib.suppress(ConnectionClosed):
            await link.send(b"a" * 100_000)
        with pytest.raises(ConnectionClosed):
            await link.recv()
        assert link.close_code == TOO_BIG


def pieces(size: int, parts: int) -> list[bytes] | bytes:
    """A message of `size` bytes, in one frame or in several."""
    return b"a" * size if parts == 1 else [b"a" * (size // parts)] * parts
