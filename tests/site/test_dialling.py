"""Direct first; where that fails through relays in turn; and direct again when it is possible."""

import asyncio
from pathlib import Path

import pytest

from peer_agent.network.link import DIAL_S, Connection, LinkLost, own_link
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Listener
from peer_agent.site import dialling
from peer_agent.site.dialling import QUICK_S, Dialling
from tests.agent.scripted_site import PATIENCE_S, TRAINER, OwnAccess

MEMBER = Listener(PeerId("a" * 32), "wss://8.8.8.8:1/", "0a" * 32)
RELAYS = [Listener(PeerId(f"{number:032x}"), f"wss://relay-{number}/") for number in range(3)]


class Scripted(OwnAccess):
    """`fails`: with which number the next direct attempts end; none: it opens."""

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


async def test_relays_are_dialled_directly_and_so_is_everybody_where_none_is_open(tmp_path: Path) -> None:
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


async def test_a_forwarded_link_goes_for_a_direct_one_outside_of_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialling, "AGAIN_S", 0.01)
    monkeypatch.setattr(dialling, "BUSY_S", 0.01)
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
