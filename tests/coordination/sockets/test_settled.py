"""A finished run has no host: its relays learn from the site that the bytes of its log may go."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from coordination.channel_layer.groups import group_of
from coordination.channel_layer.letters import HostAnnounced
from coordination.sockets import polling
from coordination.sockets.settled import settled
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.session import Identity
from runs.models import Run, Snapshot
from tests.coordination.engines import fresh_database
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import PeerLink, credential_of, identity_of, linked
from tests.runs.factories import opened

LAST = 40
State = Snapshot.State


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


@pytest.fixture
def relay(example: Example) -> Identity:
    return identity_of(credential_of(example.noor, None, Role.RELAY), example.noor.key)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks come at once."""
    for name in ("LOOK_S", "HURRY_S", "SETTLED_S"):
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
            await looked.get()  # by now the note before was handed on
        note = HostAnnounced(RunId(example.run.run_id), 1, "nobody")
        await layer.group_send(group_of(example.run.run_id), note)
        assert await link.hear() == m.Rehello(run=example.run.run_id, fence=1), "and nothing before"
