"""Real links on loopback: how they open, carry data, end and reconnect."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from peer_agent.network import link as links
from peer_agent.network.link import READ_QUEUE, Connection, LinkLost, Refused, dial, own_link
from peer_agent.network.uplink import DOWNLINK, LEAST_HELD
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.messages import MAX_HANDSHAKE, MAX_MESSAGE, PROTOCOL, Leave, State
from peer_agent.protocol.session import Identity, Link, Session, Side
from peer_agent.protocol.wire import Kind
from tests.network.loopback import (
    FETCH,
    NOTHING,
    PATIENCE_S,
    at_now,
    dial_relay,
    frame,
    how_it_ends,
    listening,
    stay,
)
from tests.protocol.identities import (
    NOW,
    RELAY,
    RELAYS_CREDENTIAL,
    RUN,
    SITE_NAME,
    STRANGERS_KEY,
    TRAINERS_CREDENTIAL,
    relay,
    site,
    trainer,
)


@asynccontextmanager
async def raw_server(handle: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[int]:
    async with serve(handle, "127.0.0.1", 0, max_size=None) as server:
        yield server.sockets[0].getsockname()[1]


# Opening


async def test_a_link_opens_and_carries_both_kinds_of_body() -> None:
    seen: list[object] = []

    async def relay_side(link: Connection) -> None:
        seen.extend([link.credential, await link.receive(), await link.receive()])
        await link.send(frame(7, kind=Kind.AVERAGE))
        await link.send(NOTHING)

    async with listening(relay_side, clock=lambda: NOW + 5) as server:
        link = await dial_relay(server)
        await link.send(frame(3))
        await link.send(FETCH)
        assert await link.receive() == frame(7, kind=Kind.AVERAGE)
        assert await link.receive() == NOTHING
        assert seen == [TRAINERS_CREDENTIAL, frame(3), FETCH]
        assert link.credential == RELAYS_CREDENTIAL
        assert link.offset_s == 5.0
        assert isinstance(await how_it_ends(link), LinkLost)
        with pytest.raises(LinkLost):
            await link.send(FETCH)


async def test_a_control_link_opens() -> None:
    async def site_side(socket: ServerConnection) -> None:
        session = Session(Side.LISTENING, Link.CONTROL, site(), nonce=b"n" * 32, server=SITE_NAME, version="")
        link = Connection(socket, session, url="", clock=at_now)
        await link.shake_hands()
        assert await link.receive() == Leave(run=RUN)
        await link.send(State(run=RUN, state="paused", reason=""))

    async with raw_server(site_side) as port:
        link = await dial(
            f"ws://127.0.0.1:{port}/",
            link=Link.CONTROL,
            identity=trainer(),
            server=SITE_NAME,
            version="1",
            clock=at_now,
        )
        await link.send(Leave(run=RUN))
        assert await link.receive() == State(run=RUN, state="paused", reason="")
        assert link.credential is None
        await link.close()


@pytest.mark.parametrize(
    ("who", "code"),
    [
        (lambda: trainer(issued_by=STRANGERS_KEY), "E201"),
        (lambda: trainer(expires=int(NOW) - 1000), "E202"),
        (lambda: trainer(not_before=int(NOW) + 1000), "E203"),
        (lambda: trainer(holds=STRANGERS_KEY), "E209"),
    ],
)
async def test_a_false_credential_is_refused_by_number(who: Callable[[], Identity], code: str) -> None:
    async with listening() as server:
        with pytest.raises(Refused, match=code) as refused:
            await dial_relay(server, who())
        assert refused.value.remote


async def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def newer(socket: ServerConnection) -> None:
        session = Session(Side.LISTENING, Link.DATA, relay(), nonce=b"n" * 32, server=RELAY, version="")
        session.start(NOW)
        (challenge,) = session.outgoing()
        ours, theirs = (b"protocol" + bytes([number]) for number in (PROTOCOL, PROTOCOL + 1))
        await socket.send(challenge.replace(ours, theirs))
        await socket.wait_closed()

    async with raw_server(newer) as port:
        words = f"E205: This agent uses protocol {PROTOCOL}; the other side uses {PROTOCOL + 1}"
        with pytest.raises(Refused, match=words):
            await dial_relay(port)


# Servers that do not answer, or that are something else


async def test_nobody_there_is_e104() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Problem, match=r"E104: ws://127\.0\.0\.1"):
            await dial_relay(taken.getsockname()[1])


async def test_a_server_that_never_speaks_is_e104_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Problem, match=r"E104.*within 0\.05 s"):
        await dial_relay(silent.getsockname()[1], timeout_s=0.05)


async def test_dial_of_a_server_that_never_challenges_ends_with_e104() -> None:
    gone = asyncio.Event()

    async def silent(socket: ServerConnection) -> None:
        await socket.wait_closed()
        gone.set()

    async with raw_server(silent) as port:
        with pytest.raises(Problem, match="E104"):
            await dial_relay(port, timeout_s=0.2)
        await asyncio.wait_for(gone.wait(), PATIENCE_S)


async def test_an_http_server_is_e110() -> None:
    async def no_websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(no_websocket, "127.0.0.1", 0) as server:
        with pytest.raises(Problem, match=r"E110.*404"):
            await dial_relay(server.sockets[0].getsockname()[1])


async def test_loopback_never_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "ws_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    async with listening() as server:
        link = await dial_relay(server)
        await link.send(FETCH)
        assert await link.receive() == NOTHING
        await link.close()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9/", "strange://127.0.0.1:9/"])
async def test_a_proxy_that_cannot_be_spoken_to_is_e104(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ws_proxy", proxy)
    with pytest.raises(Problem, match="E104"):
        await dial("ws://10.1.2.3/", link=Link.DATA, identity=trainer(), server=RELAY, version="1")


async def test_a_mistake_of_ours_is_no_fault_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object, **__: object) -> Session:
        raise ValueError("a bug")

    async with listening(stay) as server:
        monkeypatch.setattr(links, "Session", mistaken)
        with pytest.raises(ValueError, match="a bug"):
            await dial_relay(server)


# How links end


async def test_garbage_is_refused_by_number() -> None:
    async def babble(socket: ServerConnection) -> None:
        await socket.send(b"\x01garbage")
        await socket.wait_closed()

    async with raw_server(babble) as port:
        with pytest.raises(Refused, match="E206"):
            await dial_relay(port)


async def test_text_is_garbage_too() -> None:
    async def chat(socket: ServerConnection) -> None:
        await socket.send("hello")
        await socket.wait_closed()

    async with raw_server(chat) as port:
        with pytest.raises(Refused, match="E206"):
            await dial_relay(port)


async def test_an_illegal_message_closes_the_link_on_both_sides() -> None:
    ended: asyncio.Future[LinkLost | Refused] = asyncio.get_running_loop().create_future()

    async def relay_side(link: Connection) -> None:
        ended.set_result(await how_it_ends(link))

    async with listening(relay_side) as server:
        link = await dial_relay(server)
        await link.send(Leave(run=RUN))
        theirs = await how_it_ends(link)
        ours = await asyncio.wait_for(ended, PATIENCE_S)
    assert isinstance(ours, Refused)
    assert isinstance(theirs, Refused)
    assert (ours.fault.code, ours.remote) == ("E208", False)
    assert (str(theirs.fault), theirs.remote) == (str(ours.fault), True)


async def test_an_overlong_message_has_its_number_on_both_sides() -> None:
    ended: asyncio.Future[LinkLost | Refused] = asyncio.get_running_loop().create_future()

    async def relay_side(link: Connection) -> None:
        ended.set_result(await how_it_ends(link))

    async with listening(relay_side) as server:
        link = await dial_relay(server)
        await asyncio.gather(link.send(frame(0, MAX_MESSAGE + 1)), return_exceptions=True)
        theirs = await how_it_ends(link)
        ours = await asyncio.wait_for(ended, PATIENCE_S)
    assert isinstance(ours, Refused)
    assert (ours.fault.code, ours.remote) == ("E210", False)
    # The error number may be lost, because the system may discard unread data when the link is cut.
    assert isinstance(theirs, LinkLost) or (theirs.fault.code, theirs.remote) == ("E210", True)


async def test_the_longest_message_passes() -> None:
    async with listening() as server:
        link = await dial_relay(server)
        await link.send(frame(0, MAX_MESSAGE - 39))
        assert await link.receive() == NOTHING
        await link.close()


async def test_closing_with_a_fault_tells_the_other_side() -> None:
    async def ban(link: Connection) -> None:
        await link.close(Fault.of("E214"), retry_after_s=2.0)

    async with listening(ban) as server:
        end = await how_it_ends(await dial_relay(server))
    assert isinstance(end, Refused)
    assert (end.fault, end.retry_after_s, end.remote) == (Fault("E214", Fault.of("E214").text), 2.0, True)


async def test_after_closing_with_a_fault_nothing_is_sent_or_received() -> None:
    async with listening() as server:
        link = await dial_relay(server)
        await link.close(Fault.of("E214"))
        await link.close()
        with pytest.raises(Refused, match="E214"):
            await link.send(FETCH)
        with pytest.raises(Refused, match="E214"):
            await link.receive()


async def test_sending_waits_for_a_reader_and_closing_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that stops reading slows its sender down instead of filling memory, and cannot delay closing."""
    monkeypatch.setattr(links, "CLOSE_S", 0.1)
    ready = asyncio.Event()

    async def never_read(link: Connection) -> None:
        await ready.wait()

    async with listening(never_read) as server:
        link = await dial_relay(server)
        sent = 0
        big = frame(0, 1 << 20)
        with contextlib.suppress(TimeoutError):
            while sent < 100:
                async with asyncio.timeout(0.5):
                    await link.send(big)
                sent += 1
        assert sent < 32
        async with asyncio.timeout(PATIENCE_S):
            await link.close()
        ready.set()


async def test_a_data_link_keeps_little_unsent_and_sends_no_pings() -> None:
    """Bytes cannot be withdrawn once buffered, and a full uplink can delay a pong beyond any timeout."""
    assert links.SOCKET_OPTIONS["write_limit"] <= 128 * 1024
    async with listening() as server:
        link = await dial_relay(server)
        assert link._socket.ping_interval is None
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            system: socket.socket = link._socket.transport.get_extra_info("socket")
            unsent = system.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            assert 0 < unsent <= 128 * 1024, "0: it was never told"
        await link.close()


def test_a_stranger_has_room_for_an_honest_handshake() -> None:
    session = Session(Side.DIALLING, Link.DATA, trainer(), nonce=b"n" * 32, server=RELAY, version="1" * 200)
    other = Session(Side.LISTENING, Link.DATA, relay(), nonce=b"n" * 32, server=RELAY, version="")
    other.start(NOW)
    session.receive(other.outgoing()[0], NOW)
    assert len(session.outgoing()[0]) * 4 < MAX_HANDSHAKE


async def test_a_limit_holds_for_what_the_system_takes_in_too() -> None:
    """A regression: the system accepted megabytes on each new link before the rate limit could count them."""

    async def relay_side(link: Connection) -> None:
        for _ in range(2):
            await link.receive()
            await link.send(frame(7, kind=Kind.AVERAGE))
        await link.receive()

    async def held(link: Connection) -> int:
        await link.send(FETCH)
        await link.receive()
        system: socket.socket = link._socket.transport.get_extra_info("socket")
        return system.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    async with listening(relay_side) as server:
        link = await dial_relay(server)
        try:
            DOWNLINK.limit(1e5)
            limited = await held(link)
            DOWNLINK.limit(0.0)
            again = await held(link)
        finally:
            DOWNLINK.limit(0.0)
            DOWNLINK.held = 0
        await link.close()
    assert limited <= 2 * LEAST_HELD < again, "Linux keeps as much again for itself"


async def test_what_comes_on_a_data_link_waits_for_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The download limit applies to frames and messages on data links. A control link is never delayed."""
    came: list[int] = []

    async def note(size: int) -> None:
        came.append(size)

    async def relay_side(link: Connection) -> None:
        await link.send(frame(7, kind=Kind.AVERAGE))
        await link.receive()

    async with listening(relay_side) as server:
        link = await dial_relay(server)
        monkeypatch.setattr(DOWNLINK, "came", note)
        await link.receive()
        assert len(came) == 1
        assert came[0] > 1000
        await link.close()


def word(index: int) -> m.Heartbeat:
    return m.Heartbeat(run=RUN, index=index)


async def test_both_ends_say_and_hear_the_same_things_in_order() -> None:
    one, other = own_link()
    said = [word(index) for index in range(READ_QUEUE)]
    for each in said:
        await one.send(each)
        await other.send(each)
    assert [await other.receive() for _ in said] == said
    heard = [await one.receive() for _ in said]
    assert all(a is b for a, b in zip(heard, said, strict=True)), "nothing is copied"


async def test_who_sends_waits_for_who_receives() -> None:
    one, other = own_link()
    for index in range(READ_QUEUE):
        await one.send(word(index))
    waiting = asyncio.create_task(one.send(word(READ_QUEUE)))
    await asyncio.sleep(0)
    assert not waiting.done()
    await other.receive()
    await waiting


@pytest.mark.parametrize("ends_here", [True, False])
async def test_the_end_reaches_everybody_who_waits(ends_here: bool) -> None:
    one, other = own_link()
    for index in range(READ_QUEUE):
        await one.send(word(index))
    waiting = [asyncio.create_task(part) for part in (one.send(word(9)), one.send(word(10)), one.receive())]
    await asyncio.sleep(0)
    await (one if ends_here else other).close()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [type(result) for result in results] == [LinkLost] * 3
    for end in (one, other):
        with pytest.raises(LinkLost):
            await end.send(word(1))
        with pytest.raises(LinkLost):
            await end.receive()
