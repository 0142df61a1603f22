"""One host: what its peers can do to it, and what they cannot."""

import asyncio
import secrets
import time
from typing import Any

import pytest

from coordination import snapshots, store
from coordination.channel_layer.groups import group_of
from coordination.channel_layer.letters import LayerRestored, MachineRevoked, PeerLost, PeerSaid, RunMoved
from coordination.hosts import host, requests
from coordination.hosts.host import Faulty, Host
from coordination.hosts.supervisor import Hosting
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Member
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import decode, encode
from tests.coordination.example_run import ACCUMULATOR, RELAY, Example
from tests.coordination.scripted_host import (
    NOOR,
    TEO,
    Script,
    arrived,
    driven,
    driving,
    example,
    heard,
    hello,
    said,
    script,
    until,
)

__all__ = ["driven", "example", "script"]


class TestFaults:
    async def test_whose_message_broke_it_is_told_and_not_heard_for_a_minute(
        self, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        def answer(event: e.Event) -> list[e.Command]:
            if isinstance(event, e.Received):
                raise OverflowError("float infinity")
            return []

        script.answer = answer
        quarantine = driven.quarantine
        async with driving(driven) as task:
            teo, noor = await arrived(driven, TEO, NOOR)
            await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), teo))
            await until(task.done)
            with pytest.raises(Faulty):
                task.result()
            note = await heard(driven, teo)
        assert note == MachineRevoked("E371", 60.0)
        assert not driven.layer.channel(noor)._waiting
        again = Host(example.run, driven.holding, driven.state, quarantine)
        async with driving(again):
            teo, noor = await arrived(again, TEO, NOOR)
            note = await heard(again, teo)
            assert note.code == "E371"
            await until(lambda: isinstance(script.events[-1], e.Joined) and script.events[-1].peer == NOOR)

    @pytest.mark.parametrize(("peer", "rests"), [(TEO, False), (None, True)])
    async def test_a_run_rests_for_a_fault_of_its_own_alone(
        self, example: Example, monkeypatch: Any, peer: PeerId | None, *, rests: bool
    ) -> None:
        async def broken(_: Any) -> None:
            raise Faulty(peer)

        hosting = Hosting(asyncio.Event())
        monkeypatch.setattr(hosting, "_hold", broken)
        hosting.begin(example.run)
        await hosting.end()
        assert (example.run.run_id in hosting.rest_until) == rests

    async def test_what_cannot_be_said_is_a_fault_of_who_asked(self, driven: Host, script: Script) -> None:
        script.answer = lambda event: [e.Send((TEO,), object())] if isinstance(event, e.Joined) else []  # type: ignore[arg-type]
        async with driving(driven) as task:
            await arrived(driven, TEO)
            await until(task.done)
            with pytest.raises(Faulty):
                task.result()
        assert driven.quarantine.left_s(TEO, time.monotonic()) > 0

    async def test_letters_that_make_no_sense_are_left_out(self, driven: Host, script: Script) -> None:
        async with driving(driven):
            assert await driven.layer.send_many((driven.holding.owner,), RunMoved()) == [driven.holding.owner]
            for data in (b"", secrets.token_bytes(40), encode(m.Welcome(credential=None, proof=bytes(64)))):
                await driven.layer.send(driven.holding.owner, PeerSaid(TEO, "x", data))
            await arrived(driven, NOOR)
            await until(lambda: script.count(e.Joined) == 1)
        assert script.count(e.Received) == 0

    async def test_a_dead_socket_costs_its_own_peer_alone(self, driven: Host, script: Script) -> None:
        everybody = e.Send((RELAY, TEO, NOOR), m.Reload(run=driven.run.run_id, step=0))
        script.answer = lambda event: [everybody] if isinstance(event, e.Received) else []
        async with driving(driven):
            channels = await arrived(driven, RELAY, TEO, NOOR)
            driven.layer.forget(channels[1])
            await driven.layer.send(driven.holding.owner, said(NOOR, m.Leave(run=driven.run.run_id), channels[2]))
            for channel in (channels[0], channels[2]):
                assert isinstance(decode((await heard(driven, channel)).data), m.Reload)
            await until(lambda: script.count(e.Lost))
        assert [event for event in script.events if isinstance(event, e.Lost)] == [e.Lost(TEO)]


class TestSessions:
    async def test_the_end_of_an_old_socket_is_not_the_end_of_the_new(self, driven: Host, script: Script) -> None:
        async with driving(driven):
            old, new = await arrived(driven, TEO, TEO)
            for channel in (old, new):
                await driven.layer.send(driven.holding.owner, PeerLost(TEO, channel))
                await arrived(driven, NOOR)
            await until(lambda: script.count(e.Joined) == 4)
        kinds = [type(event) for event in script.events if not isinstance(event, e.Ticked | e.Directed)]
        assert kinds == [e.Joined, e.Joined, e.Joined, e.Lost, e.Joined]

    async def test_an_old_socket_says_nothing_more(self, driven: Host, script: Script) -> None:
        async with driving(driven):
            old, new = await arrived(driven, TEO, TEO)
            for channel in (old, new):
                await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
            await arrived(driven, NOOR)
            await until(lambda: script.count(e.Joined) == 3)
        assert script.count(e.Received) == 1

    async def test_a_stranger_is_asked_for_its_hello(self, driven: Host, script: Script) -> None:
        async with driving(driven):
            channel = await driven.layer.new_channel()
            await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
            answer = decode((await heard(driven, channel)).data)
        assert answer == m.Rehello(run=driven.run.run_id, fence=driven.holding.fence)

    async def test_a_ban_is_final_until_it_is_taken_back(self, driven: Host, script: Script, monkeypatch: Any) -> None:
        """Also for a hello that was on its way."""
        gone = [TEO]
        monkeypatch.setattr(host, "LOOK_S", 0.01)
        monkeypatch.setattr(store, "revoked", lambda peers: gone)
        monkeypatch.setattr(store, "directed", lambda _: e.Directed("paused"))
        async with driving(driven):
            await until(lambda: script.count(e.Directed))
            for _ in range(2):
                (channel,) = await arrived(driven, TEO)
                assert (await heard(driven, channel)).code == "E214"
            assert script.count(e.Joined) == 0
            gone.clear()
            await until(lambda: not driven.unwanted)
            await arrived(driven, TEO)
            await until(lambda: script.count(e.Joined) == 1)

    async def test_a_member_that_is_unwanted_is_banned_and_no_ordinary_loss(self, driven: Host, script: Script) -> None:
        driven.state.members[TEO] = Member(TEO, "Teo", "laptop", Role.TRAINER, ACCUMULATOR, heard_at=0.0)
        await driven._looked(requests.Wishes(e.Directed("paused"), snapshots.News(), {TEO: "E214"}))
        assert [event for event in script.events if isinstance(event, e.Lost)] == [e.Lost(TEO, banned=True)]

    async def test_a_hello_is_judged_by_a_look_that_was_begun_after_it(self, driven: Host, script: Script) -> None:
        """One that was under way may have been answered before the ban was taken back."""
        banned = requests.Wishes(e.Directed("paused"), snapshots.News(), {TEO: "E324"})
        driven.unwanted, driven._looks = banned.unwanted, 1
        channel = await driven.layer.new_channel()
        await driven._heard_peer(said(TEO, hello(driven), channel))
        await driven._looked(banned)
        assert not driven.layer.channel(channel)._waiting
        driven._looks = 2
        await driven._looked(banned._replace(unwanted={}))
        assert script.count(e.Joined) == 1

    async def test_everybody_is_asked_again_when_something_may_be_lost(self, driven: Host, script: Script) -> None:
        ear = await driven.layer.new_channel()
        await driven.layer.group_add(group_of(driven.run.run_id), ear)
        async with driving(driven):
            assert not (await heard(driven, ear)).again
            await driven.layer.group_send("restored", LayerRestored())
            assert (await heard(driven, ear)).again


def test_the_same_message_to_many_is_one() -> None:
    one, other = m.Notice(run="0a" * 16, code="E1", text="a"), m.Notice(run="0a" * 16, code="E1", text="b")  # type: ignore[arg-type]
    note = e.Note("step", "done")
    commands: list[e.Command] = [
        e.Send((TEO,), one),
        e.Send((NOOR,), one),
        note,
        note,
        e.Send((TEO,), one),
        e.Send((TEO,), other),
    ]
    assert list(host.merged(commands)) == [
        e.Send((TEO, NOOR), one),
        note,
        note,
        e.Send((TEO,), one),
        e.Send((TEO,), other),
    ]
