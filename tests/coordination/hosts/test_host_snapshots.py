"""What a host tells its coordinator of snapshots, and what it writes down for it."""

from typing import Any

from coordination import snapshots
from coordination.hosts import host
from coordination.hosts.host import Host
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.credentials import Role
from runs.models import RelayAddress
from tests.coordination.example_run import ACCUMULATOR
from tests.coordination.scripted_host import NOOR, TEO, Script, arrived, driven, driving, example, said, script, until

__all__ = ["driven", "example", "script"]


class TestSnapshots:
    async def test_what_the_site_found_is_told(self, driven: Host, script: Script, monkeypatch: Any) -> None:
        """An answer of the log is told once, however often the host looks."""
        monkeypatch.setattr(host, "LOOK_S", 0.001)
        stored = m.Snapshot(index=2, step=2, digest="d" * 64, state_digest="", file="f" * 64, size=1)
        replayed = e.Replayed(2, 2, "a" * 16)
        found = snapshots.News(stored, 2, (replayed,))
        monkeypatch.setattr(snapshots, "news_of", lambda _: found)
        async with driving(driven):
            await until(lambda: script.count(e.Directed) > 3)
        assert e.SnapshotStored(stored) in script.events
        assert e.Verified(2) in script.events
        assert script.events.count(replayed) == 1

    async def test_what_is_stored_is_not_told_as_verified(self, driven: Host, script: Script, monkeypatch: Any) -> None:
        monkeypatch.setattr(host, "LOOK_S", 0.001)
        stored = m.Snapshot(index=2, step=2, digest="d" * 64, state_digest="", file="f" * 64, size=1)
        monkeypatch.setattr(snapshots, "news_of", lambda _: snapshots.News(stored))
        async with driving(driven):
            await until(lambda: script.count(e.SnapshotStored) > 1)
        assert not script.count(e.Verified)

    async def test_the_coordinators_word_becomes_rows(self, driven: Host, script: Script) -> None:
        commands: list[e.Command] = [e.Elected(TEO, 1, 1), e.Admitted(1, 1, "f" * 64, 9), e.Replay(1, 1)]
        script.answer = lambda event: commands if isinstance(event, e.Joined) else []
        async with driving(driven):
            await arrived(driven, TEO)
            await until(lambda: script.count(e.Joined))
        run = driven.run
        assert (await in_thread(run.elections.get)()).peer == TEO
        assert (await in_thread(run.admissions.get)()).sha256 == "f" * 64
        assert (await in_thread(run.replays.get)()).index == 1

    async def test_where_a_relay_can_be_dialled_is_kept(self, driven: Host, script: Script) -> None:
        greeting = m.Hello(run=driven.run.run_id, accumulator=ACCUMULATOR, url="ws://here:1/", keeps_log=True)
        for peer, role in ((TEO, Role.RELAY), (NOOR, Role.TRAINER)):
            letter = said(peer, greeting, await driven.layer.new_channel(), role)
            await driven.layer.send(driven.holding.owner, letter)
        async with driving(driven):
            await until(lambda: script.count(e.Joined) == 2)
        kept = await in_thread(lambda: list(RelayAddress.objects.values_list("peer", "url")))()
        assert kept == [(TEO, "ws://here:1/")]
