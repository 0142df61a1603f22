"""Limits on WebSocket connections, enforced by the server before a message reaches the application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from coordination.sockets.limits import say_proved
from peer_agent.protocol.messages import MAX_HANDSHAKE, MAX_MESSAGE
from server import websocket_connections
from server.http_server import serve_http
from server.reachability import bound_socket
from server.stranger_limits import MOST_FRAGMENTS, MOST_UNREAD, MOST_WAITING, PER_CREDENTIAL, Limits
from server.websocket_connections import AGENTS, HANDSHAKE_BYTES, MAX_WORD

TOO_BIG = 1009  # close codes of RFC 6455
PATIENCE_S = 10
LOST = 1006  # closed without a close frame
LIMITS = Limits()
PAGES = "/ws/runs/proverbs/"


async def counting(scope: Any, receive: Any, send: Any) -> None:
    """Answer every message with its length. Any query string counts as proof of identity."""
    await receive()
    await send({"type": "websocket.accept"})
    if scope["query_string"]:
        say_proved(scope, scope["query_string"].decode())
    while (event := await receive())["type"] == "websocket.receive":
        said = event.get("bytes") or event["text"].encode()
        await send({"type": "websocket.send", "text": str(len(said))})


@asynccontextmanager
async def linked(path: str, limits: Limits = LIMITS, **options: Any) -> AsyncIterator[ClientConnection]:
    async with (
        serving(counting, limits) as (host, port),
        connect(f"ws://{host}:{port}{path}", proxy=None, **options) as link,
    ):
        yield link


@asynccontextmanager
async def serving(application: Any, limits: Limits) -> AsyncIterator[tuple[str, int]]:
    stop, started = asyncio.Event(), asyncio.Event()
    with bound_socket("127.0.0.1", 0) as bound:
        bound.listen()
        served = asyncio.create_task(serve_http(application, bound, stop, started, limits=limits))
        await started.wait()
        host, port = bound.getsockname()[:2]
        try:
            yield host, port
        finally:
            stop.set()
            await served


@pytest.mark.parametrize(
    ("path", "limit"),
    [(AGENTS, MAX_HANDSHAKE), (f"{AGENTS}?known", MAX_MESSAGE), (PAGES, MAX_WORD), (f"{PAGES}?known", MAX_WORD)],
)
@pytest.mark.parametrize("parts", [1, 4])
async def test_a_message_is_taken_up_to_its_limit_and_no_longer_one(path: str, limit: int, parts: int) -> None:
    async with linked(path, compression=None) as link:
        await link.send(pieces(limit, parts))
        assert await link.recv() == str(limit)
        with contextlib.suppress(ConnectionClosed):  # the server may close while the client still sends
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
    return b"a" * size if parts == 1 else [b"a" * (size // parts)] * parts


async def ended(link: ClientConnection) -> int | None:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionClosed):
            async for _ in link:
                pass
    return link.close_code


async def test_a_stranger_says_so_much_in_all_and_no_more() -> None:
    async with linked(AGENTS, Limits(proof_s=3600.0), compression=None) as link:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(HANDSHAKE_BYTES // 1000 + 1):
                await link.send(b"a" * 1000)
        assert await ended(link) == LOST


async def test_a_stranger_who_proves_nothing_has_seconds() -> None:
    async with linked(AGENTS, Limits(proof_s=0.05)) as link:
        assert await ended(link) == LOST


async def test_whoever_has_proved_it_stays() -> None:
    limits = Limits(proof_s=0.2)
    async with (
        serving(counting, limits) as (host, port),
        connect(f"ws://{host}:{port}{AGENTS}?known", proxy=None) as known,
        connect(f"ws://{host}:{port}{AGENTS}", proxy=None) as stranger,
    ):
        assert await ended(stranger) == LOST  # the link with proof has outlived the same deadline
        await known.send(b"still here")
        assert await known.recv() == "10"


async def test_the_oldest_stranger_goes_for_the_newest() -> None:
    async with serving(counting, Limits(strangers=1)) as (host, port):
        first = await connect(f"ws://{host}:{port}{AGENTS}", proxy=None)
        async with connect(f"ws://{host}:{port}{AGENTS}", proxy=None) as second:
            assert await ended(first) == LOST
            await second.send(b"here")
            assert await second.recv() == "4"


async def test_machine_has_few_links_and_others_are_counted_apart() -> None:
    async with serving(counting, LIMITS) as (host, port), contextlib.AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(connect(f"ws://{host}:{port}{AGENTS}?{name}", proxy=None))
            for name in ["other", *["same"] * (PER_CREDENTIAL + 1)]
        ]
        assert await ended(links[1]) == LOST
        for link in (links[0], *links[2:]):
            await link.send(b"here")
            assert await link.recv() == "4"


@pytest.mark.parametrize("path", [PAGES, f"{AGENTS}?known"])
async def test_a_message_of_endless_empty_pieces_ends(path: str) -> None:
    async with linked(path, compression=None) as link:
        with contextlib.suppress(ConnectionClosed):
            await link.send([b"a", *[b""] * (MOST_FRAGMENTS + 1)])
        assert await ended(link) == LOST


async def test_a_page_that_talks_without_listening_ends() -> None:
    """All messages fit into one packet, so they arrive before the application reads one."""
    async with linked(PAGES, compression=None) as link:
        for _ in range(MOST_WAITING + 2):
            link.protocol.send_binary(b"again")
        link.transport.write(b"".join(link.protocol.data_to_send()))
        assert await ended(link) == LOST


async def test_answers_that_nobody_reads_are_not_kept_for_ever() -> None:
    async with linked(PAGES, compression=None) as link:
        link.transport.pause_reading()
        ping = b"p" * 125
        async with asyncio.timeout(PATIENCE_S):
            while not link.transport.is_closing():  # kernel buffers are large and their size varies
                if not link.transport.get_write_buffer_size():
                    for _ in range(MOST_UNREAD // len(ping)):
                        link.protocol.send_ping(ping)
                    link.transport.write(b"".join(link.protocol.data_to_send()))
                await asyncio.sleep(0)


async def test_socket_at_an_unknown_address_is_refused_without_a_log(caplog: pytest.LogCaptureFixture) -> None:
    from server.asgi import application

    with caplog.at_level("WARNING"):
        async with serving(application, LIMITS) as (host, port):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{host}:{port}/ws/nowhere/", proxy=None)
    assert refused.value.response.status_code == 403
    assert not caplog.records


async def test_an_agent_that_falls_silent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connections, "SILENT_S", 0.5)
    async with linked(f"{AGENTS}?known", ping_interval=0.1) as link:
        await asyncio.sleep(1.5)
        await link.send(b"pings suffice")
        assert await link.recv() == "13"
    async with linked(f"{AGENTS}?known", ping_interval=None) as link:
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(link.recv(), PATIENCE_S)
        assert link.close_code == LOST


async def test_a_page_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connections, "SILENT_S", 0.1)
    async with linked(f"{PAGES}?known", ping_interval=None) as link:
        await asyncio.sleep(0.5)
        await link.send(b"x")
        assert await link.recv() == "1"
