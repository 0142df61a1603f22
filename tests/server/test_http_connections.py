"""Untrusted HTTP connections over real sockets: the server ends endless, slow and unfinished requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.stranger_limits import HEAD_BYTES, MOST_PIPELINED, STRANGER_BYTES, Limits, Strangers
from tests.server.test_websocket_connections import PATIENCE_S, serving

SOON_S = 0.1  # deadline in seconds of the connections that must end; the others have NEVER_S
NEVER_S = 3600.0
PATIENT = Limits(head_s=NEVER_S, body_s=NEVER_S, unread_s=NEVER_S)
GET = b"GET / HTTP/1.1\r\nhost: here\r\n"


async def reading(_: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        size, more = size + len(event["body"]), event["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(limits: Limits) -> AsyncIterator[Ends]:
    async with serving(reading, limits) as place, opened(place) as ends:
        yield ends


@asynccontextmanager
async def opened(place: tuple[str, int]) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection(*place)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    heard = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65_536):
                heard += part
    return bytes(heard)


async def test_a_head_may_be_as_long_as_its_limit() -> None:
    async with connected(PATIENT) as (reader, writer):
        padding = HEAD_BYTES - len(GET) - len(b"x: \r\nconnection: close\r\n\r\n")
        writer.write(GET + b"connection: close\r\nx: " + b"a" * padding + b"\r\n\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("piece", [b"x: y\r\n", b"a"])
async def test_a_head_without_end_is_refused(piece: bytes) -> None:
    async with connected(PATIENT) as (reader, writer):
        writer.write(GET + b"y: " + piece * (HEAD_BYTES // len(piece)))
        heard = await rest(reader)
        assert heard.startswith(b"HTTP/1.1 431")
        assert str(HEAD_BYTES).encode() in heard


@pytest.mark.parametrize("head", [b"", b"GET", GET])
async def test_half_a_head_has_seconds(head: bytes) -> None:
    async with connected(Limits(head_s=SOON_S, body_s=NEVER_S, keep_alive_s=NEVER_S)) as (reader, writer):
        writer.write(head)
        assert await rest(reader) == b""


async def test_half_of_a_second_head_has_them_too() -> None:
    async with connected(Limits(head_s=SOON_S, body_s=NEVER_S, keep_alive_s=NEVER_S)) as (reader, writer):
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(b"G")
        assert await rest(reader) == b""


async def test_nobody_is_kept_who_asks_nothing_more() -> None:
    async with connected(Limits(head_s=NEVER_S, body_s=NEVER_S, keep_alive_s=SOON_S)) as (reader, writer):
        writer.write(GET + b"\r\n")
        assert (await rest(reader)).startswith(b"HTTP/1.1 200")


async def test_half_a_short_body_has_seconds_however_it_drips() -> None:
    async with connected(Limits(head_s=NEVER_S, body_s=SOON_S, slowest=0)) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 60000\r\n\r\n")
        ended = asyncio.create_task(rest(reader))
        with contextlib.suppress(ConnectionError):
            while not ended.done():
                writer.write(b"a")
                await asyncio.sleep(0)
        assert await ended == b""


async def test_a_long_body_that_moves_may_take_its_time() -> None:
    """A body that keeps arriving outlives the deadline that ends a stalled one."""
    length = 2 * STRANGER_BYTES
    limits = Limits(head_s=NEVER_S, body_s=SOON_S, slowest=0, keep_alive_s=NEVER_S)
    async with serving(reading, limits) as place, opened(place) as (reader, writer), opened(place) as (short, other):
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % length)
        other.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\na")
        assert await rest(short) == b""
        writer.write(b"a" * length)
        assert b"\r\n%d\r\n" % length in await rest(reader)


@pytest.mark.parametrize("sent", [1, STRANGER_BYTES])
async def test_a_long_body_that_does_not_move_ends(sent: int) -> None:
    async with connected(Limits(head_s=NEVER_S, body_s=SOON_S)) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % (2 * STRANGER_BYTES))
        writer.write(b"a" * sent)
        assert await rest(reader) == b""


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """The answer exceeds all buffers. The application ends without waiting for the reader."""
    done = asyncio.Event()

    async def large(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"a" * 100_000, "more_body": True})
        done.set()

    limits = Limits(head_s=NEVER_S, body_s=NEVER_S, unread_s=SOON_S)
    async with serving(large, limits) as place, opened(place) as (_, writer), asyncio.timeout(PATIENCE_S):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        writer.write(GET + b"\r\n")
        await done.wait()


async def test_requests_do_not_pile_up_before_the_first_is_answered() -> None:
    waiting = asyncio.Event()

    async def silent(_: Any, receive: Any, send: Any) -> None:
        await waiting.wait()

    async with serving(silent, PATIENT) as place, opened(place) as (reader, writer):
        writer.write((GET + b"\r\n") * (MOST_PIPELINED + 2))
        assert (await rest(reader)).startswith(b"HTTP/1.1 400")
        waiting.set()


async def test_the_oldest_half_request_goes_for_the_newest() -> None:
    limits = Limits(head_s=NEVER_S, body_s=NEVER_S, strangers=2)
    async with serving(reading, limits) as place, opened(place) as (oldest, half), opened(place) as (_, other):
        half.write(GET)
        other.write(GET)
        async with opened(place) as (reader, writer):
            assert await rest(oldest) == b""
            writer.write(GET + b"connection: close\r\n\r\n")
            assert (await rest(reader)).startswith(b"HTTP/1.1 200")


async def test_connections_beyond_the_limit_are_turned_away() -> None:
    limits = Limits(head_s=NEVER_S, connections=1)
    async with serving(reading, limits) as place, opened(place) as (first, writer), opened(place) as (second, _):
        assert await rest(second) == b""
        writer.write(GET + b"connection: close\r\n\r\n")
        assert (await rest(first)).startswith(b"HTTP/1.1 200")


class Guest:
    is_out = False

    def turn_out(self) -> None:
        self.is_out = True


class TestStrangers:
    def test_an_address_has_its_share_and_others_keep_theirs(self) -> None:
        strangers = Strangers(Limits(strangers=100, of_address=2))
        other, first, second, third = guests = [Guest() for _ in range(4)]
        strangers.enter(other, "192.0.2.1")
        for guest in (first, second, third):
            strangers.enter(guest, "192.0.2.2")
        assert [guest.is_out for guest in guests] == [False, True, False, False]
        assert len(strangers) == 3

    def test_a_household_of_ipv6_is_one(self) -> None:
        strangers = Strangers(Limits(of_address=1))
        first, second = Guest(), Guest()
        strangers.enter(first, "2001:db8::1")
        strangers.enter(second, "2001:db8::2")
        assert first.is_out

    def test_behind_a_proxy_of_ours_there_may_be_many(self) -> None:
        strangers = Strangers(Limits(strangers=100, of_address=1))
        guests = [Guest() for _ in range(65)]
        for guest in guests:
            strangers.enter(guest, "127.0.0.1")
        assert not any(guest.is_out for guest in guests)

    def test_who_has_left_takes_no_room(self) -> None:
        strangers = Strangers(Limits(strangers=1, of_address=1))
        first, second = Guest(), Guest()
        strangers.enter(first, "192.0.2.1")
        strangers.leave(first)
        strangers.leave(first)
        strangers.enter(second, "192.0.2.1")
        assert not second.is_out
        assert len(strangers) == 1
