"""Links to relays, and what is fetched over them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.network.certificate import Certificate, new_certificate
from peer_agent.network.link import DIAL_S, Connection, LinkLost, own_link
from peer_agent.network.relay_server import Server
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Listener
from peer_agent.protocol.wire import LOGGED, Frame, Kind
from peer_agent.site import relay_links
from peer_agent.site.relay_links import QUICK_S, DataLinks, Dialling
from tests.agent.scripted_site import OTHER_RELAY, PATIENCE_S, RELAY, TRAINER, OwnAccess
from tests.averaging.rounds import RUN, averaged, contributor, plan_of, record_of
from tests.network.loopback import listening, stay

MEMBER = Listener(PeerId("a" * 32), "wss://8.8.8.8:1/", "0a" * 32)
RELAYS = [Listener(PeerId(f"{number:032x}"), f"wss://relay-{number}/") for number in range(3)]


class Scripted(OwnAccess):
    """Scripted access to a run. `fails` is the error code of direct dialling. If it is empty, the link is opened."""

    def __init__(self, folder: Path, role: Role = Role.TRAINER, peer: PeerId = TRAINER) -> None:
        super().__init__(folder, peer, role, "")
        self.fails = ""
        self.done: list[str | float] = []

    async def dial_listener(self, listener: Listener, timeout_s: float = DIAL_S) -> Connection:
        self.done.append(timeout_s)
        if self.fails:
            raise Problem.of(self.fails, url=listener.url, reason="")
        return own_link()[0]

    async def dial_through(self, relay: Listener, listener: Listener) -> Connection:
        assert listener == MEMBER
        self.done.append(relay.url)
        link = own_link()[0]
        link.beneath = asyncio.create_task(asyncio.sleep(0))
        return link


def ways(access: Scripted, relays: list[Listener], listener: Listener = MEMBER) -> Dialling:
    return Dialling(access, listener, lambda: relays, lambda: False)


async def attempts(way: Dialling, count: int) -> None:
    for _ in range(count):
        try:
            await way.connect()
        except Problem:
            continue


async def test_direct_then_through_each_relay_in_turn(tmp_path: Path) -> None:
    access = Scripted(tmp_path)
    access.fails = "E104"
    await attempts(ways(access, RELAYS), 8)
    direct, through = access.done[::2], access.done[1::2]
    assert direct == [DIAL_S, QUICK_S, QUICK_S, QUICK_S], "a round may wait for whoever had a link"
    assert len({*through[:3]}) == 3
    assert through[3] == through[0]


async def test_diallers_spread_over_the_relays(tmp_path: Path) -> None:
    first = set()
    for number in range(20):
        access = Scripted(tmp_path, peer=PeerId(f"{number:032x}"))
        access.fails = "E104"
        await attempts(ways(access, RELAYS), 2)
        first.add(access.done[1])
    assert len(first) == 3


@pytest.mark.parametrize("role", [Role.RELAY, Role.READER])
async def test_nobody_else_is_forwarded(tmp_path: Path, role: Role) -> None:
    access = Scripted(tmp_path, role)
    access.fails = "E104"
    await attempts(ways(access, RELAYS), 4)
    assert access.done == [DIAL_S] * 4


async def test_relays_are_dialled_directly_as_are_all_without_a_relay(tmp_path: Path) -> None:
    access = Scripted(tmp_path)
    access.fails = "E104"
    await attempts(ways(access, RELAYS, RELAYS[0]), 3)
    await attempts(ways(access, []), 3)
    assert access.done == [DIAL_S] * 6


async def test_who_is_reached_and_refuses_is_not_asked_through_others(tmp_path: Path) -> None:
    access = Scripted(tmp_path)
    access.fails = "E110"
    await attempts(ways(access, RELAYS), 3)
    assert access.done == [DIAL_S] * 3


async def test_after_a_link_that_ends_it_is_direct_first(tmp_path: Path) -> None:
    access = Scripted(tmp_path)
    way = ways(access, RELAYS)
    access.fails = "E104"
    await attempts(way, 2)
    access.fails = ""
    await attempts(way, 2)
    assert access.done[2:] == [QUICK_S, QUICK_S]


async def test_forwarded_link_yields_to_a_direct_one_between_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_links, "AGAIN_S", 0.01)
    monkeypatch.setattr(relay_links, "BUSY_S", 0.01)
    access, served, looks = Scripted(tmp_path), list[Connection](), [True, True, False]
    way = Dialling(access, MEMBER, lambda: RELAYS, lambda: looks.pop(0) if looks else False)
    forwarded = await access.dial_through(RELAYS[0], MEMBER)

    async def serve(link: Connection) -> None:
        served.append(link)
        if link.is_direct:
            raise LinkLost("the direct one ends at last")
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(LinkLost):
            await way.hold(forwarded, serve)
    assert [link.is_direct for link in served] == [False, True]
    assert looks == []
    with pytest.raises(LinkLost):
        await forwarded.receive()


async def test_a_forwarded_link_that_ends_is_not_waited_with(tmp_path: Path) -> None:
    way = ways(access := Scripted(tmp_path), RELAYS)

    async def serve(_: Connection) -> None:
        raise LinkLost("it has ended")

    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(LinkLost):
            await way.hold(await access.dial_through(RELAYS[0], MEMBER), serve)
    assert access.done == [RELAYS[0].url]


AUXILIARY = PeerId("a" * 32)
SENDINGS = [contributor(1, 100).offer("fp32")]
RECORD = record_of(PLAN := plan_of(SENDINGS), averaged(PLAN, SENDINGS)[0])
ENTRY = RECORD.spans[0]  # a span of two chunks
REAL: dict[str, Any] = {"clock": time.time}  # the real clock, by which these credentials are valid


def links(folder: Path) -> DataLinks:
    async def hear(_: PeerId, __: object) -> None:
        pass

    ours = DataLinks(OwnAccess(folder / "agent", TRAINER, Role.TRAINER, ""), hear)
    ours.open = Watched()
    return ours


async def a_relay(folder: Path) -> OwnAccess:
    access = OwnAccess(folder / "relay", RELAY, Role.RELAY, "")
    await access.renew()
    return access


class Watched(dict[PeerId, Connection]):
    """Open links, by peer. Each new link is also put into a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.came: asyncio.Queue[Connection] = asyncio.Queue()

    def __setitem__(self, peer: PeerId, link: Connection) -> None:
        super().__setitem__(peer, link)
        self.came.put_nowait(link)


async def next_link(ours: DataLinks) -> Connection:
    assert isinstance(ours.open, Watched)
    async with asyncio.timeout(PATIENCE_S):
        return await ours.open.came.get()


def logged(chunk: int) -> Frame:
    return Frame(Kind.AVERAGE, RUN, 1, LOGGED, 0, 0, chunk, 0, bytes([chunk]))


async def test_a_frozen_relay_is_cut_off_and_dialled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regression: with a frozen relay, each attempt to fetch a span took the full timeout."""
    monkeypatch.setattr(relay_links, "FETCH_S", 0.05)
    identity = (await a_relay(tmp_path)).identity()
    async with listening(stay, who=identity, identity_of=lambda: identity, **REAL) as server:
        ours = links(tmp_path)
        ours.follow((m.Listener(peer=RELAY, url=f"ws://127.0.0.1:{server.port}/"),))
        first = await next_link(ours)
        assert await ours.ask(RELAY, RECORD, ENTRY) is None
        assert await next_link(ours) is not first
        await ours.close()


async def test_fetch_from_a_relay_ends_when_its_link_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_links, "FETCH_S", 100 * PATIENCE_S)

    async def leave(link: Connection) -> None:
        await link.receive()
        link.abort()

    identity = (await a_relay(tmp_path)).identity()
    async with listening(leave, who=identity, identity_of=lambda: identity, **REAL) as server:
        ours = links(tmp_path)
        ours.follow((m.Listener(peer=RELAY, url=f"ws://127.0.0.1:{server.port}/"),))
        await next_link(ours)
        async with asyncio.timeout(PATIENCE_S):
            assert await ours.ask(RELAY, RECORD, ENTRY) is None
        await ours.close()


async def test_chunks_are_ordered_and_a_coming_span_is_not_asked_again(tmp_path: Path) -> None:
    may_answer = asyncio.Event()
    asked: list[object] = []

    async def give(link: Connection) -> None:
        while True:
            asked.append(await link.receive())
            await may_answer.wait()
            for index in (1, 1, 0):
                await link.send(logged(index))

    identity = (await a_relay(tmp_path)).identity()
    async with listening(give, who=identity, identity_of=lambda: identity, **REAL) as server:
        ours = links(tmp_path)
        ours.follow((m.Listener(peer=RELAY, url=f"ws://127.0.0.1:{server.port}/"),))
        await next_link(ours)
        fetching = asyncio.create_task(ours.ask(RELAY, RECORD, ENTRY))
        await asyncio.sleep(0)
        assert await ours.ask(RELAY, RECORD, ENTRY) is None
        may_answer.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await fetching == [b"\0", b"\1"]
        assert len(asked) == 1
        await ours.close()


async def test_failed_link_is_dialled_when_its_relay_is_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[str] = []

    async def refused(listener: m.Listener, _: float) -> Connection:
        dialled.append(listener.url)
        raise Problem.of("E217")

    ours = links(tmp_path)
    monkeypatch.setattr(ours.access, "dial_listener", refused)
    address = m.Listener(peer=RELAY, url="ws://127.0.0.1:9/")
    for _ in range(2):
        ours.follow((address,))
        await asyncio.wait([ours._tasks[address]])
    assert len(dialled) == 2
    await ours.close()


@asynccontextmanager
async def giving(folder: Path, peer: PeerId, *chunks: Frame) -> AsyncIterator[m.Listener]:
    access = OwnAccess(folder / peer, peer, Role.RELAY, "")
    await access.renew()

    async def give(link: Connection) -> None:
        while True:
            await link.receive()
            for chunk in chunks:
                await link.send(chunk)

    async with listening(give, who=access.identity(), identity_of=access.identity, **REAL) as server:
        yield m.Listener(peer=peer, url=f"ws://127.0.0.1:{server.port}/")


async def test_a_span_that_is_damaged_on_one_relay_is_asked_of_another(tmp_path: Path) -> None:
    """A regression: the first answer was final, even if damaged."""
    damaged, whole = (logged(0), replace(logged(1), payload=b"?")), (logged(0), logged(1))
    kept: list[list[bytes]] = []

    async def keep(payloads: list[bytes]) -> bool:
        kept.append(payloads)
        return payloads == [b"\0", b"\1"]

    async with giving(tmp_path, RELAY, *damaged) as first, giving(tmp_path, OTHER_RELAY, *whole) as second:
        ours = links(tmp_path)
        ours.follow((first, second))
        for _ in range(2):
            await next_link(ours)
        assert await ours.fetch(RECORD, replace(ENTRY, reducer=RELAY), keep)
        assert kept == [[b"\0", b"?"], [b"\0", b"\1"]]
        assert not await ours.fetch(RECORD, ENTRY, refuse)
        await ours.close()


async def refuse(_: list[bytes]) -> bool:
    return False


@pytest.mark.parametrize("change", [{"chunk": 2}, {"payload": bytes(4 * 1024 + 1)}])
async def test_relay_that_sends_more_than_the_record_does_not_have_it(tmp_path: Path, change: dict[str, Any]) -> None:
    """A receiver that accepted more would let the relay decide how much memory it uses."""
    async with giving(tmp_path, RELAY, logged(0), replace(logged(1), **change)) as relay:
        ours = links(tmp_path)
        ours.follow((relay,))
        await next_link(ours)
        async with asyncio.timeout(PATIENCE_S):
            assert await ours.ask(RELAY, RECORD, ENTRY) is None
        await ours.close()


@asynccontextmanager
async def an_auxiliary(folder: Path, certificate: Certificate) -> AsyncIterator[Server]:
    access = OwnAccess(folder / "auxiliary", AUXILIARY, Role.AUXILIARY, "")
    await access.renew()
    facts: dict[str, Any] = {"who": access.identity(), "identity_of": access.identity, "certificate": certificate}
    async with listening(stay, **facts, **REAL) as server:
        yield server


def listener_at(server: Server, fingerprint: str) -> m.Listener:
    return m.Listener(AUXILIARY, f"wss://127.0.0.1:{server.port}/", fingerprint)


async def test_a_member_that_listens_is_dialled_by_its_certificate(tmp_path: Path) -> None:
    certificate = new_certificate()
    async with an_auxiliary(tmp_path, certificate) as server:
        ours = links(tmp_path)
        ours.follow((listener_at(server, certificate.fingerprint),))
        await next_link(ours)
        assert list(ours.open) == [AUXILIARY]
        assert (ours.addresses, ours.reached) == ([], []), "whoever is told of relays is told of relays alone"
        await ours.close()


async def test_whoever_shows_another_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    async with an_auxiliary(tmp_path, new_certificate()) as server:
        ours = links(tmp_path)
        ours.follow((listener := listener_at(server, new_certificate().fingerprint),))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([ours._tasks[listener]])
        assert not ours.open
        await ours.close()


async def test_local_address_is_not_dialled_for_a_remote_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def dialled(*_: object) -> Connection:
        raise AssertionError("it was dialled")

    caplog.set_level("INFO")
    ours = links(tmp_path)
    ours.access.site = replace(ours.access.site, url="https://8.8.8.8")
    monkeypatch.setattr(ours.access, "dial_listener", dialled)
    ours.follow((listener := m.Listener(AUXILIARY, "wss://192.168.1.1:443/", "0a" * 32),))
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([ours._tasks[listener]])
    assert "wss://192.168.1.1:443/ is not dialled" in caplog.text
    await ours.close()
