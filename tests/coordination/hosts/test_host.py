"""A single host: its clock, claim, database, peers and their faults."""

import asyncio
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError
from prometheus_client import REGISTRY

from coordination import snapshots, store
from coordination.channel_layer.messages import LayerRestored, MachineRevoked, PeerLost, PeerSaid, RunMoved, group_of
from coordination.hosts import claims, host, requests, writer
from coordination.hosts.claims import CLAIM_S, MARGIN_S, Holding
from coordination.hosts.host import Faulty, Host
from coordination.hosts.supervisor import Hosting
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Member
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import SealedCommit
from peer_agent.protocol.wire import decode, encode
from runs.models import RelayAddress
from tests.coordination.engines import PATIENCE_S
from tests.coordination.example_run import ACCUMULATOR, RELAY, UNIT, Example, next_record, sealed
from tests.coordination.scripted_host import (
    NOOR,
    TEO,
    Clock,
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


class TestTheClock:
    async def test_ticks_by_itself_however_much_is_said(self, driven: Host, script: Script, monkeypatch: Any) -> None:
        monkeypatch.setattr(host, "TICK_S", 1e6)
        async with driving(driven):
            (channel,) = await arrived(driven, TEO)
            for _ in range(2000):
                await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
            await until(lambda: script.count(e.Received) == 2000)
            assert script.count(e.Ticked) == 1

    async def test_a_flood_keeps_nothing_else_from_its_turn(
        self, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(host, "TICK_S", 0.001)
        monkeypatch.setattr(host, "LOOK_S", 0.001)
        mailbox = driven.mailbox
        monkeypatch.setattr(mailbox, "get", self.endless(mailbox.get, driven))
        async with driving(driven):
            await until(lambda: script.count(e.Ticked) > 5 and script.count(e.Directed) > 2)

    async def test_words_that_are_lost_in_a_flood_are_told_of_once(
        self, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        told: list[e.Note] = []
        monkeypatch.setattr(host, "TICK_S", 0.0)
        monkeypatch.setattr(driven.writer, "ask", told.append)
        driven.mailbox.capacity = 3

        async def flood(channel: str) -> None:
            for _ in range(5):
                await driven.layer.send_many(
                    (driven.holding.owner,), said(TEO, m.Leave(run=driven.run.run_id), channel)
                )

        async with driving(driven):
            (channel,) = await arrived(driven, TEO)
            await until(lambda: script.count(e.Joined))
            for number in (1, 2):
                await flood(channel)
                await until(lambda number=number: script.count(e.Received) >= 3 * number)  # type: ignore[misc]
            await until(lambda: not driven.mailbox.dropped)
        notes = [note for note in told if isinstance(note, e.Note)]
        assert [note.text for note in notes] == [f"{TEO[:8]} says more than the site takes; some of it was lost"]

    def endless(self, get: Any, driven: Host) -> Any:
        """Return a replacement for the mailbox's `get` that adds another message each time, so the mailbox is never
        empty."""

        async def found() -> Any:
            driven.mailbox.put(said(TEO, hello(driven), "nowhere"))
            return await get()

        return found

    async def test_ticks_however_late_leave_room_for_messages(
        self, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(host, "TICK_S", 0.0)
        async with driving(driven):
            (channel,) = await arrived(driven, TEO)
            for _ in range(100):
                await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
            await until(lambda: script.count(e.Received) == 100)


class TestTheClaim:
    def held(self, example: Example, clock: Clock, threads: Any) -> Holding:
        fence = claims.claim(example.run, "me")
        return Holding(example.run, "me", fence or 0, asked_at=clock(), threads=threads, clock=clock)

    async def test_is_not_relied_on_when_somebody_else_may_have_it(self, example: Example) -> None:
        clock = Clock()
        held = await in_thread(self.held)(example, clock, None)
        clock.now = CLAIM_S - MARGIN_S - 0.001
        assert held.is_held()
        clock.now = CLAIM_S - MARGIN_S
        assert not held.is_held()

    async def test_counts_from_when_it_was_asked_for(self, example: Example, monkeypatch: Any) -> None:
        monkeypatch.setattr(claims, "RENEW_S", 0.0)
        clock = Clock()

        def slow(*_: Any) -> bool:
            clock.now += 3.0
            return clock.now < 4.0

        monkeypatch.setattr(claims, "renew", slow)
        with ThreadPoolExecutor(1) as threads:
            held = await in_thread(self.held)(example, clock, threads)
            await held.keep()
        assert (held.asked_at, held.is_lost) == (0.0, True)

    async def test_is_kept_while_everything_else_hangs(self, example: Example, monkeypatch: Any) -> None:
        """All threads of the host's loop wait for a database that does not answer."""
        monkeypatch.setattr(claims, "RENEW_S", 0.0)
        asked, go_on = [], threading.Event()

        def renew(*_: Any) -> bool:
            asked.append(1)
            return True

        monkeypatch.setattr(claims, "renew", renew)
        with ThreadPoolExecutor(1) as threads:
            held = await in_thread(self.held)(example, Clock(), threads)
            hung = [asyncio.ensure_future(in_thread(go_on.wait)(PATIENCE_S)) for _ in range(100)]
            keeping = asyncio.create_task(held.keep())
            try:
                await until(lambda: len(asked) > 3)
            finally:
                go_on.set()
                keeping.cancel()
                await asyncio.wait([*hung, keeping])

    async def test_is_renewed_while_the_state_is_loaded(self, example: Example, monkeypatch: Any) -> None:
        """A regression test: reading a long log took longer than a claim lasts, so two processes kept taking the run
        from each other.
        """
        renewed, seen = threading.Event(), []

        def load(*_: Any) -> None:
            renewed.clear()
            seen.append(renewed.wait(PATIENCE_S))
            raise RuntimeError("that was all")

        def renew(*_: Any) -> bool:
            renewed.set()
            return True

        monkeypatch.setattr(claims, "RENEW_S", 0.0)
        monkeypatch.setattr(claims, "renew", renew)
        monkeypatch.setattr(store, "load", load)
        hosting = Hosting(asyncio.Event())
        hosting.begin(example.run)
        await hosting.end()
        assert seen == [True]

    async def test_that_is_lost_between_two_commands_ends_the_second(self, driven: Host, script: Script) -> None:
        driven.channels[TEO] = channel = await driven.layer.new_channel()
        word = e.Send((TEO,), m.Reload(run=driven.run.run_id, step=0))
        script.answer = lambda _: [word, e.Abdicate(), word]
        await driven.handle(e.Ticked())
        assert len(driven.layer.channel(channel)._waiting) == 1

    async def test_that_cannot_be_renewed_ends_what_is_said(self, driven: Host, script: Script) -> None:
        clock = Clock()
        driven.holding.clock, driven.holding.asked_at = clock, 0.0
        script.answer = lambda _: [e.Send((TEO,), m.Reload(run=driven.run.run_id, step=0))]
        async with driving(driven) as task:
            (channel,) = await arrived(driven, TEO)
            await heard(driven, channel)
            clock.now = CLAIM_S
            await until(task.done)
            events = len(script.events)
            await driven.handle(e.Ticked())
            assert len(script.events) == events, "nothing goes through its coordinator any more"


class TestTheDatabase:
    async def test_is_retried_while_full_and_blocks_nothing_else(
        self, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        for room in (claims, writer):
            monkeypatch.setattr(room, "RETRY_S", 0.0)
        record = await in_thread(next_record)(example.run, (example.teo, (UNIT,)))
        outcomes = ["failed"] * 500 + ["raises"] * 5

        def commit(*_: Any, **__: Any) -> str:
            outcome = outcomes.pop() if outcomes else "committed"
            if outcome == "raises":
                raise OperationalError("database or disk is full")
            return outcome

        def answer(event: e.Event) -> list[e.Command]:
            again = isinstance(event, e.Joined) or (isinstance(event, e.Persisted) and event.outcome == "failed")
            return [e.Persist(record, 0.0, 1)] if again else []

        monkeypatch.setattr(store, "commit", commit)
        script.answer = answer
        async with driving(driven):
            await arrived(driven, TEO)
            await until(lambda: any(isinstance(ev, e.Persisted) and ev.outcome == "committed" for ev in script.events))
        assert script.count(e.Persisted) == 501

    async def test_that_hangs_in_a_commit_keeps_nobody_waiting(
        self, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        record = await in_thread(next_record)(example.run, (example.teo, (UNIT,)))
        go_on, asked = threading.Event(), []

        def commit(*_: Any, **__: Any) -> str:
            asked.append(1)
            go_on.wait(PATIENCE_S)
            return "committed"

        monkeypatch.setattr(store, "commit", commit)
        script.answer = lambda event: [e.Persist(record, 0.0, 1)] if isinstance(event, e.Joined) else []
        try:
            async with driving(driven):
                await arrived(driven, TEO, NOOR)
                await until(lambda: asked and script.count(e.Joined) == 2)
                ticks = script.count(e.Ticked)
                await until(lambda: script.count(e.Ticked) > ticks + 1)
                go_on.set()
                await until(lambda: script.count(e.Persisted))
        finally:
            go_on.set()
        assert (len(asked), script.count(e.Persisted)) == (1, 1), "asked for twice meanwhile, done once"

    async def test_rounds_are_counted_by_outcome_and_cause(
        self, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        record = await in_thread(next_record)(example.run, (example.teo, (UNIT,)))
        outcomes = ["failed", "committed"]
        monkeypatch.setattr(writer, "RETRY_S", 0.0)
        monkeypatch.setattr(store, "commit", lambda *_, **__: outcomes.pop(0))
        note = e.Note("void", "a step is retried", (), "stuck")

        def answer(event: e.Event) -> list[e.Command]:
            again = isinstance(event, e.Persisted) and event.outcome == "failed"
            return [note, e.Persist(record, 2.0, 1)] if isinstance(event, e.Joined) or again else []

        script.answer, before = answer, [counted(*labels) for labels in (("void", "stuck"), ("committed", ""))]
        async with driving(driven):
            await arrived(driven, TEO)
            await until(lambda: script.count(e.Persisted) == 2)
        after = [counted(*labels) for labels in (("void", "stuck"), ("committed", ""))]
        assert [now - then for now, then in zip(after, before, strict=True)] == [2, 1]

    async def test_is_not_written_by_a_host_whose_claim_is_over(self, example: Example, driven: Host) -> None:
        """The column `waiting_for` is not protected by the fence, so a former host could overwrite the next host's
        value.
        """
        driven.writer.ask(e.Waiting("for a relay"))
        driven.writer.drain()
        driven.holding.is_lost = True
        await driven.writer.work()
        await in_thread(example.run.refresh_from_db)()
        assert example.run.waiting_for == ""

    async def test_that_raises_no_marks_grants_nothing(self, driven: Host, monkeypatch: Any) -> None:
        def raise_marks(*_: Any) -> None:
            raise store.Stale

        monkeypatch.setattr(store, "raise_marks", raise_marks)
        driven.writer.ask(e.Reserve((e.Mark(0, 0, 4),)))
        driven.writer.drain()
        await driven.writer.work()
        assert driven.holding.is_lost
        assert not driven.mailbox._first

    async def test_resends_a_page_at_most(
        self, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        record = await in_thread(next_record)(example.run, (example.teo, (UNIT,)))
        asked: list[int] = []

        def sealed_from(_: Any, first: int, count: int) -> list[Any]:
            asked.append(count)
            return [sealed(record)] * count

        monkeypatch.setattr(store, "sealed_from", sealed_from)
        monkeypatch.setattr(writer, "PAGE_BYTES", 10 * len(encode(SealedCommit(sealed(record), record).to(TEO, 1))))
        script.answer = lambda event: [e.Resend(TEO, 1, 10_000)] if isinstance(event, e.Joined) else []
        async with driving(driven):
            (channel,) = await arrived(driven, TEO)
            pages = [decode((await heard(driven, channel)).data) for _ in range(10)]
            await driven.layer.send(driven.holding.owner, said(TEO, m.Leave(run=driven.run.run_id), channel))
            await until(lambda: script.count(e.Received))
            assert not driven.layer.channel(channel)._waiting
        assert all(isinstance(page, m.Commit) for page in pages)
        assert asked == [writer.PAGE]

    @pytest.mark.parametrize("records", [1, 3])
    async def test_tells_of_each_page_when_it_is_said(
        self, records: int, example: Example, driven: Host, script: Script, monkeypatch: Any
    ) -> None:
        """The host reports even a full page, because a commit may have been sent to the peer before the page."""
        record = await in_thread(next_record)(example.run, (example.teo, (UNIT,)))
        monkeypatch.setattr(store, "sealed_from", lambda *_: [sealed(record)] * records)
        script.answer = lambda event: [e.Resend(TEO, 7, 3)] if isinstance(event, e.Joined) else []
        async with driving(driven):
            await arrived(driven, TEO)
            await until(lambda: script.count(e.Paged))
        assert [event for event in script.events if isinstance(event, e.Paged)] == [e.Paged(TEO, 6 + records)]


class TestFaults:
    async def test_sender_of_a_fatal_message_is_told_and_quarantined(
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
        """The ban also applies to a hello that was already in transit."""
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

    async def test_unwanted_member_is_banned_rather_than_merely_lost(self, driven: Host, script: Script) -> None:
        driven.state.members[TEO] = Member(TEO, "Teo", "laptop", Role.TRAINER, ACCUMULATOR, heard_at=0.0)
        await driven._looked(requests.Wishes(e.Directed("paused"), snapshots.News(), {TEO: "E214"}))
        assert [event for event in script.events if isinstance(event, e.Lost)] == [e.Lost(TEO, banned=True)]

    async def test_a_hello_is_judged_by_a_look_that_was_begun_after_it(self, driven: Host, script: Script) -> None:
        """A database poll that began before the hello may have read the rows before the ban was lifted."""
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


class TestSnapshots:
    async def test_what_the_site_found_is_told(self, driven: Host, script: Script, monkeypatch: Any) -> None:
        monkeypatch.setattr(host, "LOOK_S", 0.001)
        stored = m.Snapshot(index=2, step=2, digest="d" * 64, state_digest="", file="f" * 64, size=1)
        replayed = e.Replayed(2, 2, "a" * 16)
        found = snapshots.News(stored, 2, archived := e.Archived(1, gap=False), (replayed,))
        monkeypatch.setattr(snapshots, "news_of", lambda _: found)
        async with driving(driven):
            await until(lambda: script.count(e.Directed) > 3)
        assert e.SnapshotStored(stored) in script.events
        assert e.Verified(2) in script.events
        assert script.events.count(archived) == 1
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
            message = said(peer, greeting, await driven.layer.new_channel(), role)
            await driven.layer.send(driven.holding.owner, message)
        async with driving(driven):
            await until(lambda: script.count(e.Joined) == 2)
        kept = await in_thread(lambda: list(RelayAddress.objects.values_list("peer", "url")))()
        assert kept == [(TEO, "ws://here:1/")]


def counted(outcome: str, cause: str) -> float:
    labels = {"outcome": outcome, "cause": cause}
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "manyhands_rounds_total" and labels.items() <= sample.labels.items()
    )
