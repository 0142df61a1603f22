"""The listening side on loopback: strangers, limits, renewed credentials, bans, and a clean shutdown."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.relay_server import CAPS, CREDENTIAL_S, Caps
from peer_agent.protocol.credentials import Credential
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import MAX_HANDSHAKE, Challenge, Refusal
from peer_agent.protocol.wire import decode
from tests.network.loopback import (
    FETCH,
    NOTHING,
    PATIENCE_S,
    answer,
    dial_relay,
    frame,
    how_it_ends,
    listening,
    stay,
)
from tests.protocol.identities import NOW, RELAY, TRAINER, relay, trainer

SHORT_S = 0.1


async def stranger(port: int) -> ClientConnection:
    return await connect(f"ws://127.0.0.1:{port}/", proxy=None)


async def hung_up(socket: ClientConnection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()


def test_the_caps_are_those_of_the_rule() -> None:
    assert (3.0, Caps(per_credential=4, per_address=32, unauthenticated=128)) == (CREDENTIAL_S, CAPS)


async def test_it_says_which_port_it_got_and_tells_when_one_is_taken() -> None:
    async with listening() as server:
        assert server.port > 0
        with pytest.raises(Problem, match=rf"E401: Port {server.port} is taken"):
            async with listening(port=server.port):
                pass


# Strangers


async def test_whoever_never_proves_who_it_is_is_cut() -> None:
    async with listening(credential_s=SHORT_S) as server:
        socket = await stranger(server.port)
        assert isinstance(decode(await socket.recv(decode=False)), Challenge)
        await hung_up(socket)


async def test_whoever_does_not_even_speak_http_is_cut() -> None:
    async with listening(credential_s=SHORT_S) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: slow")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_stranger_that_only_pings_is_cut_off_on_time() -> None:
    async with listening(credential_s=SHORT_S) as server:
        socket = await stranger(server.port)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await (await socket.ping())


@pytest.mark.parametrize(("said", "code"), [(b"", "E206"), (b"\x01garbage", "E206"), (b"\x02" + bytes(100), "E208")])
async def test_strangers_that_talk_nonsense_are_refused_by_number(said: bytes, code: str) -> None:
    async with listening() as server:
        socket = await stranger(server.port)
        await socket.recv()
        await socket.send(said)
        refusal = decode(await socket.recv(decode=False))
        assert isinstance(refusal, Refusal)
        assert refusal.code == code
        await hung_up(socket)


async def test_stranger_gets_little_memory_and_a_member_enough() -> None:
    async with listening() as server:
        socket = await stranger(server.port)
        await socket.recv()
        await socket.send(bytes(MAX_HANDSHAKE + 1))
        await hung_up(socket)
        assert socket.close_code == 1009
        link = await dial_relay(server)
        await link.send(frame(0, MAX_HANDSHAKE * 10))
        assert await link.receive() == NOTHING


async def test_too_many_strangers_are_turned_away_until_some_have_gone() -> None:
    async with listening(caps=Caps(unauthenticated=2)) as server:
        first, _ = await stranger(server.port), await stranger(server.port)
        with pytest.raises(InvalidStatus, match="503"):
            await stranger(server.port)
        with pytest.raises(Problem, match=r"E104.*too many connections"):
            await dial_relay(server)
        await first.close()
        await _until(lambda: dial_relay(server))


async def test_those_who_are_known_do_not_count_as_strangers() -> None:
    async with listening(caps=Caps(unauthenticated=1)) as server:
        links = [await dial_relay(server, trainer(run=RunId(f"{n:032x}"))) for n in range(5)]
        for link in links:
            await link.send(FETCH)
            assert await link.receive() == NOTHING


async def test_an_address_has_so_many_strangers() -> None:
    async with listening(caps=Caps(per_address=2)) as server:
        first, _ = await stranger(server.port), await stranger(server.port)
        with pytest.raises(InvalidStatus, match="503"):
            await stranger(server.port)
        await first.close()
        await _until(lambda: dial_relay(server))


async def test_a_school_behind_one_address_is_served_whole() -> None:
    """A regression: the 65th machine behind one proxy was locked out."""
    async with listening(caps=Caps(per_address=1)) as server:
        links = [await dial_relay(server, trainer(run=RunId(f"{n:032x}"))) for n in range(5)]
        for link in links:
            await link.send(FETCH)
            assert await link.receive() == NOTHING


async def test_messages_are_no_longer_than_was_allowed() -> None:
    """The plan sets the longest message that a contributor may send."""

    async def with_a_plan(link: Connection) -> None:
        link.allow(20_000)
        await answer(link)

    async with listening(with_a_plan, message_bytes=MAX_HANDSHAKE) as server:
        link = await dial_relay(server)
        await link.send(frame(0, 19_000))
        assert await link.receive() == NOTHING
        await link.send(frame(0, 20_001))
        await how_it_ends(link)
    async with listening(message_bytes=MAX_HANDSHAKE) as server:
        link = await dial_relay(server)
        await link.send(frame(0, 19_000))
        await how_it_ends(link)


async def _until(attempt: Callable[[], Awaitable[Connection]]) -> None:
    """Retry until the attempt succeeds, because the server notices a closed link slightly later than the client."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Problem):
                await attempt()
                return


# Peers with credentials


async def test_the_oldest_link_of_a_credential_goes_for_the_newest() -> None:
    async with listening(caps=Caps(per_credential=2)) as server:
        oldest, older = await dial_relay(server), await dial_relay(server)
        others = await dial_relay(server, trainer(run=RunId("bb" * 16)))
        newest = await dial_relay(server)
        assert isinstance(await how_it_ends(oldest), LinkLost)
        for link in (older, newest, others):
            await link.send(FETCH)
            assert await link.receive() == NOTHING


async def test_whoever_is_not_admitted_is_never_welcomed() -> None:
    handled: list[Connection] = []
    asked: list[Credential] = []

    async def relay_side(link: Connection) -> None:
        handled.append(link)

    def nobody(credential: Credential) -> Fault:
        asked.append(credential)
        return Fault.of("E213")

    async with listening(relay_side, admit=nobody) as server:
        with pytest.raises(Refused, match="E213"):
            await dial_relay(server)
    assert [credential.machine for credential in asked] == [TRAINER]
    assert handled == []


async def test_a_renewed_credential_is_used_at_once() -> None:
    identities = [relay(expires=int(NOW) - 1000), relay()]
    async with listening(identity_of=lambda: identities.pop(0)) as server:
        with pytest.raises(Refused, match="E202"):
            await dial_relay(server)
        await dial_relay(server)


async def test_a_handler_that_fails_is_logged_and_costs_only_its_link(caplog: pytest.LogCaptureFixture) -> None:
    async def stumble(link: Connection) -> None:
        if await link.receive() == FETCH:
            raise KeyError("a bug")
        await answer(link)

    async with listening(stumble) as server:
        unlucky, lucky = await dial_relay(server), await dial_relay(server)
        await unlucky.send(FETCH)
        assert isinstance(await how_it_ends(unlucky), LinkLost)
        await lucky.send(frame())
        await lucky.send(FETCH)
        assert await lucky.receive() == NOTHING
    assert "connection handler failed" in caplog.text


async def test_closing_ends_handlers_links_and_strangers() -> None:
    waiting = asyncio.Event()

    async def busy(_: Connection) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with listening(busy) as server:
        port = server.port
        link, socket = await dial_relay(server), await stranger(port)
        await asyncio.wait_for(waiting.wait(), PATIENCE_S)
    assert isinstance(await how_it_ends(link), LinkLost)
    await hung_up(socket)
    with pytest.raises(Problem, match="E104"):
        await dial_relay(port)


async def test_the_relay_is_the_one_in_its_credential() -> None:
    async with listening(stay) as server:
        link = await dial_relay(server)
        assert link.credential is not None
        assert link.credential.peer == RELAY


async def test_an_open_link_ends_with_its_credential() -> None:
    """A revoked machine gets no new credential. The relay keeps serving it only until its current credential
    expires."""
    within_tolerance = trainer(expires=int(NOW) - 300)
    async with listening(stay) as server:
        lasting = await dial_relay(server)
        ending = await how_it_ends(await dial_relay(server, within_tolerance))
        assert isinstance(ending, Refused)
        assert ending.fault.code == "E202"
        await lasting.send(FETCH)  # the other link stays open
        await lasting.close()
