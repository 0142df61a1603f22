"""A forwarded link: a process between the two ends can neither read nor change the messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from peer_agent.network.certificate import new_certificate
from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.uplink import TRAFFIC
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.wire import Frame
from tests.agent.scripted_site import PATIENCE_S
from tests.network.loopback import how_it_ends
from tests.relay.forwarded import gradient, scene

SECRET = b"nobody else reads this" * 100
Change = Callable[[bytes, int], bytes]


class Between:
    """A forwarder to a port, like a relay. `change` receives the dialler's bytes and their offset in the stream."""

    def __init__(self, port: int, change: Change) -> None:
        self.port, self.change = port, change
        self.seen = bytearray()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.port)
        back = asyncio.create_task(_copy(theirs, writer))
        while data := await reader.read(65536):
            ours.write(self.change(data, len(self.seen)))
            self.seen += data
        back.cancel()
        ours.close()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


@asynccontextmanager
async def between(change: Change) -> AsyncIterator[tuple[Between, int]]:
    """Run a forwarder. Yield it with its port, before the target's port is known."""
    middle = Between(0, change)
    server = await asyncio.start_server(middle.serve, "127.0.0.1", 0)
    try:
        yield middle, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await server.wait_closed()


@pytest.mark.parametrize("at", [None, 100, 300_000])
async def test_whoever_forwards_can_neither_read_nor_change_it(tmp_path: Path, at: int | None) -> None:
    """The forwarder changes one byte of the handshake or of a chunk. The link then ends, and all earlier data is
    intact.
    """
    taken: list[bytes] = []
    ended = asyncio.Event()

    async def take(link: Connection) -> None:
        try:
            while True:
                body = await link.receive()
                assert isinstance(body, Frame)
                taken.append(bytes(body.payload))
        finally:
            ended.set()

    def change(data: bytes, before: int) -> bytes:
        if at is None or not before <= at < before + len(data):
            return data
        return bytes(byte ^ (place + before == at) for place, byte in enumerate(data))

    async with between(change) as (middle, port):

        def lead(to: int) -> int:
            middle.port = to
            return port

        async with scene(tmp_path, take, port=lead) as there, asyncio.timeout(PATIENCE_S):
            if at == 100:
                with pytest.raises(Problem, match="E104"):
                    await there.dialled()
                return
            link = await there.dialled()
            with suppress(LinkLost, Refused):
                for chunk in range(1000):
                    await link.send(gradient(chunk, SECRET))
                await link.close()
            await ended.wait()
            await how_it_ends(link)
    assert SECRET[:22] not in middle.seen
    assert set(taken) == {SECRET}
    assert len(taken) == 1000 if at is None else len(taken) * len(SECRET) < 300_000


async def test_another_machine_at_the_other_end_is_not_spoken_to(tmp_path: Path) -> None:
    """A relay chooses where to forward bytes, but no other machine can impersonate the listener."""
    async with scene(tmp_path) as there:
        there.far = replace(there.far, fingerprint=new_certificate().fingerprint)
        with pytest.raises(Problem, match=r"E104.*E217"):
            await there.dialled()
        await there.until_open(0)


async def test_bytes_are_counted_once_at_each_end(tmp_path: Path) -> None:
    """The dialler, the relay and the listener all run in this process, so all four transfers are counted."""
    async with scene(tmp_path) as there:
        link = await there.dialled()
        sent = TRAFFIC.sent
        await link.send(gradient(0, bytes(1_000_000)))
        await link.receive()
        moved = TRAFFIC.sent - sent
        await link.close()
    assert 4e6 < moved < 4.2e6, "dialler, relay, listener, relay"
