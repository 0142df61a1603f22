"""Sockets poll the database for hosts, finished runs and owners' instructions."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from msgspec.structs import replace

from accounts import machine_control, services
from accounts.models import MachineControl
from coordination.channel_layer.messages import HostAnnounced, group_of
from coordination.hosts import claims
from coordination.sockets import polling
from coordination.sockets.polling import LONGEST_S, UNANSWERED_S, Following, Hosts, HostSearch, settled
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.messages import Snapshotted
from peer_agent.protocol.messages.machine import Why
from peer_agent.protocol.session import Identity
from runs.models import Run, Snapshot
from tests.coordination.engines import PATIENCE_S, fresh_database
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import PeerLink, credential_of, identity_of, linked
from tests.runs.factories import opened

TURNS = 50  # turns of a thread, each as long as a poll
RUN = "0a" * 16
LAST = 40
State = Snapshot.State
SOON_S = 1.0  # seconds within which a machine must answer


class Hurried:
    def __init__(self, here: HostSearch) -> None:
        self.here, self.found = here, asyncio.Event()

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        del hosts, asked_at
        self.found.set()
        self.here.wake()

    async def announce_finished(self, notes: Sequence[Snapshotted]) -> None:
        """Do nothing, because this socket keeps no log."""


async def test_however_many_are_in_a_hurry_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    def hosts_of() -> Hosts:
        looks.append(None)
        return {}

    monkeypatch.setattr(claims, "hosts_of", hosts_of)
    monkeypatch.setattr(polling, "settled", lambda _: ())
    monkeypatch.setattr(polling, "LEAST_PAUSE_S", 1e6)
    here = HostSearch()
    socket = Hurried(here)
    here.add(socket)
    here.wake()
    async with asyncio.timeout(PATIENCE_S):
        await socket.found.wait()
        for _ in range(TURNS):
            await in_thread(int)()
    assert len(looks) == 1
    assert here._task is not None
    assert not here._task.done(), "it goes on after the pause"
    here._task.cancel()
    await asyncio.wait([here._task])


@pytest.fixture
def one() -> Following:
    following = Following()
    assert following.follow(RUN, "first", 1, 0.0)
    return following


def test_a_newer_host_is_followed_and_an_older_one_is_not(one: Following) -> None:
    assert one.follow(RUN, "second", 2, 1.0)
    assert not one.follow(RUN, "first", 1, 2.0)
    assert one.hosts == {RUN: "second"}


def test_the_same_host_asks_again_where_it_says_so(one: Following) -> None:
    assert not one.follow(RUN, "first", 1, 1.0)
    assert one.follow(RUN, "first", 1, 1.0, again=True)
    assert not one.follow(RUN, "nobody", 0, 1.0, again=True)


def test_a_look_finds_a_host_whose_announcement_was_lost(one: Following) -> None:
    assert one.look({RUN: ("second", 2)}, 1.0, 1.0) == [RUN]
    assert one.hosts == {RUN: "second"}
    assert one.look({RUN: ("second", 2)}, 2.0, 2.0) == []


def test_a_host_that_could_not_be_reached_is_found_again(one: Following) -> None:
    one.unfollow(RUN)
    assert one.look({RUN: ("first", 1)}, 1.0, 1.0) == [RUN]


def test_a_run_without_a_host_has_none(one: Following) -> None:
    one.look({}, 1.0, 1.0)
    assert one.hosts == {}


def test_a_host_that_announced_itself_during_a_look_is_kept(one: Following) -> None:
    one.look({}, -1.0, 1.0)
    assert one.hosts == {RUN: "first"}


def test_unanswered_hello_is_repeated_with_growing_pauses(one: Following) -> None:
    now, waits = 0.0, []
    for _ in range(6):
        one.said_hello(RUN, now)
        begun = now
        while not one.look({RUN: ("first", 1)}, now, now):
            now += 0.5
        waits.append(now - begun - 0.5)
    assert waits[:4] == [UNANSWERED_S, 2 * UNANSWERED_S, 4 * UNANSWERED_S, 8 * UNANSWERED_S]
    assert max(waits) <= LONGEST_S


def test_one_that_is_answered_is_not_asked_for(one: Following) -> None:
    one.said_hello(RUN, 0.0)
    one.answered(RUN)
    assert one.look({RUN: ("first", 1)}, 100.0, 100.0) == []


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


@pytest.fixture
def relay(example: Example) -> Identity:
    return identity_of(credential_of(example.noor, None, Role.RELAY), example.noor.key)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "LEAST_PAUSE_S", "SETTLED_S"):
        monkeypatch.setattr(polling, name, 0.01)


def snapshot(run: Run, index: int, state: str) -> None:
    facts = {"step": index, "file": f"{index:064x}", "size": 1, "state_digest": f"{index:016x}"}
    Snapshot.objects.create(run=run, index=index, state=state, **facts)


def finish(run: Run, *, verified: int = LAST, days_ago: float = 0) -> None:
    snapshot(run, verified, State.VERIFIED)
    at = timezone.now() - timedelta(days=days_ago)
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED, finished_at=at)


def told(notes: list[m.Snapshotted]) -> list[tuple[str, int]]:
    return [(note.run, note.keep_after) for note in notes]


def test_up_to_where_the_model_was_verified(example: Example) -> None:
    assert settled() == [], "it is not finished"
    finish(example.run)
    snapshot(example.run, LAST + 10, State.ADMITTED)
    assert told(settled()) == [(example.run.run_id, LAST)]
    example.run.snapshots.filter(state=State.VERIFIED).update(state=State.ADMITTED)
    assert settled() == [], "nothing in it is verified"


def test_what_was_finished_since(example: Example) -> None:
    other = opened(example.run.organizer, slug="riddles")
    finish(example.run, days_ago=2)
    finish(other, verified=3)
    assert sorted(told(settled())) == sorted([(example.run.run_id, LAST), (other.run_id, 3)])
    assert told(settled(timezone.now() - timedelta(days=1))) == [(other.run_id, 3)]


async def heard(link: PeerLink) -> m.Snapshotted:
    async with asyncio.timeout(120):
        message = await link.hear()
    assert isinstance(message, m.Snapshotted)
    return message


async def test_a_relay_is_told_when_it_comes(example: Example, relay: Identity, layer: Any) -> None:
    await in_thread(finish)(example.run)
    async with linked(relay) as link:
        message = await heard(link)
    assert (message.run, message.keep_after, message.snapshot.step) == (example.run.run_id, LAST, LAST)


async def test_one_that_is_there_is_told_when_a_run_is_finished(
    example: Example, relay: Identity, layer: Any, quick: None
) -> None:
    async with linked(relay) as link:
        await in_thread(finish)(example.run)
        assert (await heard(link)).keep_after == LAST


async def test_a_trainer_is_not_told(
    example: Example, layer: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def counted(since: datetime) -> list[m.Snapshotted]:
        notes = settled(since)
        loop.call_soon_threadsafe(looked.put_nowait, len(notes))
        return notes

    monkeypatch.setattr(polling, "settled", counted)
    async with linked(identity_of(credential_of(example.teo, example.run), example.teo.key)) as link:
        await in_thread(finish)(example.run)
        async with asyncio.timeout(120):
            while not await looked.get():
                pass
            await looked.get()  # the earlier note has been delivered by now
        note = HostAnnounced(RunId(example.run.run_id), 1, "nobody")
        await layer.group_send(group_of(example.run.run_id), note)
        assert await link.hear() == m.Rehello(run=example.run.run_id, fence=1), "and nothing before"


def link_of(example: Example, role: Role = Role.TRAINER) -> Any:
    return linked(identity_of(credential_of(example.teo, example.run, role), example.teo.key))


async def instructions(link: PeerLink) -> m.Instructions:
    async with asyncio.timeout(10):
        while not isinstance(body := await link.hear(), m.Instructions):
            pass
        return body


async def says(link: PeerLink, example: Example, revision: int, why: Why = Why.WORKS) -> None:
    await link.say(m.MachineReport(run=example.run.run_id, revision=revision, why=why))


async def pause(example: Example) -> None:
    await in_thread(machine_control.change)(machine=example.teo.machine, to=lambda wanted: replace(wanted, pause=True))


async def shown(example: Example) -> machine_control.Control:
    return await in_thread(machine_control.control_of)(example.teo.machine)


@pytest.mark.parametrize("role", [Role.TRAINER, Role.AUXILIARY])
async def test_machine_gets_instructions_once_heard_and_then_at_once(example: Example, layer: Any, role: Role) -> None:
    async with link_of(example, role) as link:
        await says(link, example, -1)
        assert await instructions(link) == m.Instructions(revision=0)
        began = time.monotonic()
        await pause(example)
        assert await instructions(link) == m.Instructions(revision=1, pause=True)
        await says(link, example, 1, Why.PAUSED)
        while not (await shown(example)).is_heard:  # noqa: ASYNC110 (another task writes a row)
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < SOON_S + 1, "a second, and some for a busy machine"
        assert (await shown(example)).rest.why is Why.PAUSED
    while (await shown(example)).report is not None:  # noqa: ASYNC110 (the same)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("why", [Why.PAUSED, Why.WORKS])
async def test_who_rests_finds_out_that_it_is_wanted_no_more(example: Example, layer: Any, why: Why) -> None:
    """A host disconnects a revoked machine that is working, but has no state for a paused one. The socket must
    therefore notice the revocation.
    """
    async with link_of(example) as link:
        await says(link, example, -1, why)
        await instructions(link)
        await in_thread(services.revoke_machine)(machine=example.teo.machine)
        await says(link, example, 0, why)
        if why is Why.PAUSED:
            assert (await link.how_it_ends())[0] == "E214"
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await link.hear()


async def test_an_agent_of_before_is_told_nothing(example: Example, layer: Any) -> None:
    await pause(example)
    async with link_of(example) as link:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await instructions(link)


async def test_nobody_speaks_for_a_machine_in_another_run(example: Example, layer: Any) -> None:
    async with link_of(example) as link:
        await link.say(m.MachineReport(run="0b" * 16))  # type: ignore[arg-type]
        assert (await link.how_it_ends())[0] == "E213"
    assert not await in_thread(MachineControl.objects.exists)()


async def test_another_machine_hears_nothing(example: Example, layer: Any) -> None:
    noor = identity_of(credential_of(example.noor, example.run), example.noor.key)
    async with link_of(example) as link, linked(noor) as other:
        for one in (link, other):
            await says(one, example, -1)
            await instructions(one)
        await pause(example)
        assert (await instructions(link)).pause
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await instructions(other)


async def test_what_was_said_is_not_said_twice(example: Example, layer: Any) -> None:
    """Overlapping polls all find the same change."""
    async with link_of(example) as link:
        await says(link, example, -1)
        await instructions(link)
        await pause(example)
        await instructions(link)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await instructions(link)


async def test_machine_over_its_report_rate_writes_no_more_rows(example: Example, layer: Any) -> None:
    """The site ignores excess reports and keeps the link open."""
    async with link_of(example) as link:
        for number in range(200):
            await link.say(m.MachineReport(run=example.run.run_id, revision=-1, month_bytes=number))
        assert await instructions(link) == m.Instructions(revision=0)
        await asyncio.sleep(1.0)
        report = (await shown(example)).report
        assert report is not None
        assert report.month_bytes < 40


async def test_what_a_newer_link_said_outlives_the_older_one(example: Example, layer: Any) -> None:
    """Both links send the same report. A machine that resumes after a rest opens a new link before its old one
    closes."""
    async with link_of(example) as older:
        await says(older, example, 0)
        while (await shown(example)).report is None:  # noqa: ASYNC110 (another task writes a row)
            await asyncio.sleep(0.01)
        async with link_of(example) as newer:
            await says(newer, example, 0)
            await asyncio.sleep(0.3)
            await older.leave()
            await asyncio.sleep(0.3)
            assert (await shown(example)).report is not None
