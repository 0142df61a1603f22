"""A relay forwards only between allowed peers, and within its limits."""

import asyncio
import socket
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest

from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.relay_server import CAPS, Caps
from peer_agent.network.tunnel import TUNNEL_BYTES
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.wire import PIECE_BYTES, Frame, Kind
from peer_agent.relay.forwarding import LIMITS, Limits
from tests.agent.scripted_site import PATIENCE_S, TRAINER, dial_relay
from tests.averaging.rounds import RUN
from tests.network.loopback import how_it_ends, listening, stay
from tests.relay.forwarded import LISTENER, REAL, access_of, gradient, scene

SHORT_S = 0.1
MOST_PIECES = 1024  # 64 MiB: more than systems buffer for a socket
OTHERS = [PeerId(f"{number:032x}") for number in range(1, 6)]


async def refused(link: Connection) -> str:
    end = await how_it_ends(link)
    assert isinstance(end, Refused), end
    return str(end)


async def echoed(link: Connection, chunk: int, payload: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        await link.send(gradient(chunk, payload))
        frame = await link.receive()
    assert isinstance(frame, Frame)
    assert frame.chunk == chunk
    return bytes(frame.payload)


# Both directions


async def test_listener_that_cannot_be_dialled_is_reached_by_relay(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        access = await access_of(tmp_path, TRAINER, Role.TRAINER)
        with pytest.raises(Problem, match="E104"):
            await access.dial_listener(there.far)
        link = await there.dialled()
        assert link.credential is not None
        assert (link.credential.peer, link.is_direct) == (LISTENER, False)
        for chunk, size in enumerate((0, 1, PIECE_BYTES, 5 * PIECE_BYTES + 1)):
            payload = bytes([chunk + 1]) * size
            assert await echoed(link, chunk, payload) == payload
        await link.close()


async def test_where_one_end_goes_the_other_learns_of_it(tmp_path: Path) -> None:
    served: asyncio.Queue[Connection] = asyncio.Queue()

    async def serve(link: Connection) -> None:
        served.put_nowait(link)
        await stay(link)

    async with scene(tmp_path, serve) as there:
        link = await there.dialled()
        (await served.get()).abort()
        assert isinstance(await how_it_ends(link), LinkLost)
        await there.until_open(0)
        link = await there.dialled()
        ending = asyncio.create_task(how_it_ends(await served.get()))
        link.abort()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([ending])
        await there.until_open(0)


async def test_it_ends_with_the_credential_of_who_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        link = await there.dialled()
        (at_the_relay,) = there.forwarder.links
        there.server._expire(at_the_relay)
        await how_it_ends(link)
        await there.until_open(0)


# For which peers, to which peers


@pytest.mark.parametrize("role", [Role.READER, Role.RELAY])
async def test_it_forwards_for_those_who_train_and_average(tmp_path: Path, role: Role) -> None:
    async with scene(tmp_path) as there:
        link = await there.way(OTHERS[0], role)
        await link.send(m.Forward(run=RUN, to=LISTENER))
        assert "E213" in await refused(link)
        await (await there.dialled(OTHERS[1], Role.AUXILIARY)).close()


async def test_another_run_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        assert "E213" in await refused(await there.asked(run=RunId("cd" * 16)))


@pytest.mark.parametrize("to", [PeerId("f" * 32), TRAINER])
async def test_a_stranger_and_oneself_are_nobody_to_be_forwarded_to(tmp_path: Path, to: PeerId) -> None:
    async with scene(tmp_path) as there:
        assert "E232" in await refused(await there.asked(to=to))


async def test_a_listener_that_is_gone_is_told_of(tmp_path: Path) -> None:
    async with scene(tmp_path, port=lambda _: 9) as there:
        assert "E232" in await refused(await there.asked())


async def test_a_listener_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("peer_agent.relay.forwarding.connected", never)
    async with scene(tmp_path, limits=Limits(connect_s=SHORT_S)) as there:
        assert "no answer" in await refused(await there.asked())


async def test_a_frame_where_a_question_belongs_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        link = await there.way()
        await link.send(Frame(Kind.FORWARDED, RUN, 0, 0, 0, 0, 0, 0, b"GET / HTTP/1.1"))
        assert "E208" in await refused(link)


async def test_a_second_question_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        link = await there.asked()
        assert await link.receive() == m.Forwarding(run=RUN, to=LISTENER)
        await link.send(m.Forward(run=RUN, to=LISTENER))
        end = await how_it_ends(link)
        assert isinstance(end, Refused)
        assert end.fault.code == "E208"


async def test_a_chunk_on_such_a_socket_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        link = await there.asked()
        await link.receive()
        await link.send(gradient(0, b"bytes"))
        assert "E208" in await refused(link)


# How many, how long, how much


def test_no_relay_shuts_a_listener_to_the_others_behind_it() -> None:
    assert LIMITS.per_listener < CAPS.per_address


async def test_a_credential_has_so_many(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(per_credential=2)) as there:
        first, _ = await there.way(), await there.way()
        await there.until_open(2)
        assert "E232" in await refused(await there.way())
        await (await there.dialled(OTHERS[0])).close()
        first.abort()
        await there.until_open(1)
        await (await there.dialled()).close()


async def test_a_listener_has_so_many(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(per_listener=2)) as there:
        links = [await there.dialled(peer) for peer in OTHERS[:2]]
        assert "E232" in await refused(await there.asked(OTHERS[2]))
        for link in links:
            await link.close()


async def test_a_relay_has_so_many(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(in_all=2)) as there:
        links = [await there.way(peer) for peer in OTHERS[:2]]
        await there.until_open(2)
        assert "E232" in await refused(await there.way(OTHERS[2]))
        for link in links:
            link.abort()
        await there.until_open(0)
        await (await there.dialled(OTHERS[2])).close()


async def test_the_older_of_two_to_the_same_listener_goes(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        older = await there.dialled()
        newer = await there.dialled()
        await how_it_ends(older)
        await there.until_open(1)
        assert await echoed(newer, 0, b"bytes") == b"bytes"
        await newer.close()


async def test_whoever_asks_nothing_is_cut(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(first_s=SHORT_S)) as there:
        assert isinstance(await how_it_ends(await there.way()), LinkLost)
        await there.until_open(0)


async def test_one_that_is_not_used_ends(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(idle_s=0.5)) as there:
        link = await there.dialled()
        assert isinstance(await how_it_ends(link), LinkLost)
        await there.until_open(0)


async def test_frames_without_a_byte_are_no_use(tmp_path: Path) -> None:
    async with scene(tmp_path, limits=Limits(idle_s=3.0), credential_s=PATIENCE_S) as there:
        link = await there.asked()
        await link.receive()
        async with asyncio.timeout(PATIENCE_S):
            with suppress(LinkLost, Refused):
                while True:
                    await link.send(Frame(Kind.FORWARDED, RUN, 0, 0, 0, 0, 0, 0, b""))
                    await asyncio.sleep(0.05)


async def test_a_stranger_at_the_listener_is_cut_there_and_so_here(tmp_path: Path) -> None:
    async with scene(tmp_path, credential_s=SHORT_S) as there:
        link = await there.asked()
        assert await link.receive() == m.Forwarding(run=RUN, to=LISTENER)
        await how_it_ends(link)
        await there.until_open(0)


async def test_longer_frames_than_a_piece_are_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        link = await there.asked()
        await link.receive()
        await link.send(Frame(Kind.FORWARDED, RUN, 0, 0, 0, 0, 0, 0, bytes(PIECE_BYTES + 1)))
        assert "E210" in await refused(link)


async def test_what_a_listener_does_not_read_is_not_held_at_the_relay(tmp_path: Path) -> None:
    """A relay takes in no more than it can deliver, so a dialler that keeps sending has to wait."""
    deaf = socket.create_server(("127.0.0.1", 0))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    piece = Frame(Kind.FORWARDED, RUN, 0, 0, 0, 0, 0, 0, bytes(PIECE_BYTES))
    sent = 0
    async with scene(tmp_path, port=lambda _: int(deaf.getsockname()[1])) as there:
        link = await there.asked()
        await link.receive()
        tracemalloc.start()
        try:
            with suppress(TimeoutError):
                while sent < MOST_PIECES:
                    async with asyncio.timeout(1.0):
                        await link.send(piece)
                    sent += 1
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent < MOST_PIECES
        assert held < 2 * TUNNEL_BYTES, "both ends of the way to the relay are in this process"
        deaf.close()  # the system resets connections in the accept queue
        await there.until_open(0)
        link.abort()


async def test_relay_that_does_not_forward_loses_only_a_fresh_socket(tmp_path: Path) -> None:
    """A relay that accepted the forward link would mistake it for the trainer's newer link, and stop serving the older
    one.
    """
    relay = await access_of(tmp_path, PeerId("0b" * 16), Role.RELAY)
    came: list[Connection] = []

    async def handle(link: Connection) -> None:
        came.append(link)
        await stay(link)

    async with listening(
        handle, who=relay.identity(), identity_of=relay.identity, caps=Caps(per_credential=1), **REAL
    ) as server:
        address = m.Listener(relay.peer, f"ws://127.0.0.1:{server.port}/")
        ours = await dial_relay(address.url, tmp_path, 1)
        access = await access_of(tmp_path, PeerId(f"{1:032x}"), Role.TRAINER)
        with pytest.raises(Problem, match=r"E104.*does not forward"):
            await access.dial_through(address, m.Listener(LISTENER, "wss://127.0.0.1:9/", "0a" * 32))
        await ours.send(gradient(0, b"it goes on"))
        assert len(came) == 1
        await ours.close()


async def test_sockets_to_forward_do_not_cost_the_ordinary_link(tmp_path: Path) -> None:
    async with scene(tmp_path) as there:
        ours = await (await access_of(tmp_path, TRAINER, Role.TRAINER)).dial_listener(there.relay)
        ways = [await there.way() for _ in range(CAPS.per_credential + 1)]
        await there.until_open(len(ways))
        await ours.send(gradient(0, b"it goes on"))
        await ours.send(gradient(0, b"and on"))
        for link in (*ways, ours):
            await link.close()
