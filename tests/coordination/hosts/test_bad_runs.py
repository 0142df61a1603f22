"""A run whose coordinator fails: it is loaded anew, and the others do not notice."""

from typing import Any

import pytest

from coordination import store
from coordination.hosts import host, supervisor
from coordination.threads import in_thread
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import advance
from peer_agent.protocol.identifiers import PeerId
from runs import queue
from runs.models import Head
from tests.coordination.engines import fresh_database, use_layer
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import credential_of, identity_of
from tests.coordination.peers import Contributor, taking_part
from tests.coordination.running import at_work, hosts, steps_on, until
from tests.runs.factories import opened


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    use_layer("memory", request, settings)
    monkeypatch.setattr(queue, "enqueue", lambda *_, **__: None)
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


async def test_whoever_breaks_a_host_is_left_out_and_the_run_goes_on(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    noor = PeerId(example.noor.machine.peer_id)
    broke: list[int] = []

    def fragile(state: Any, event: e.Event, now: float, seed: int) -> list[e.Command]:
        if isinstance(event, e.Received) and event.peer == noor and state.step >= 2 and state.fence < 3:
            broke.append(state.fence)
            state.step += 5  # half-changed
            raise OverflowError("cannot convert float infinity to integer")
        return advance(state, event, now, seed)

    monkeypatch.setattr(host, "advance", fragile)
    async with hosts(), at_work(example) as (teo, other):
        await until(lambda: other.refused == "E371", "it is told")
        await steps_on(3)
        assert (broke, teo.refused) == ([1], "")
    assert (await in_thread(Head.objects.get)()).fence == 2


async def test_whoever_broke_a_host_is_not_heard_by_that_of_another_process(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    noor = PeerId(example.noor.machine.peer_id)

    def fragile(state: Any, event: e.Event, now: float, seed: int) -> list[e.Command]:
        if isinstance(event, e.Received) and event.peer == noor and state.fence == 1:
            raise OverflowError("cannot convert float infinity to integer")
        return advance(state, event, now, seed)

    monkeypatch.setattr(host, "advance", fragile)
    identity = identity_of(credential_of(example.noor, example.run), example.noor.key)
    async with at_work(example) as (_, other):
        async with hosts():
            await until(lambda: other.refused == "E371", "it is told")
        async with hosts(), taking_part(Contributor, identity, example.run.run_id) as again:
            await until(lambda: again.refused == "E371", "it is told again")
            await steps_on(1)


async def test_a_run_that_cannot_be_loaded_rests_and_others_have_their_hosts(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await in_thread(opened)(example.run.organizer, slug="riddles")
    load, tried = store.load, []

    def broken(run: Any, fence: int) -> Any:
        if run.pk == other.pk:
            tried.append(fence)
            raise ValueError("a record that nobody can read")
        return load(run, fence)

    monkeypatch.setattr(store, "load", broken)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.0)
    monkeypatch.setattr(supervisor, "RESTS_S", (0.0, 1e6))

    def step() -> int:
        return Head.objects.get(run=example.run).step

    async with hosts(), at_work(example):
        await until(lambda: step() >= 2, "the other goes")
        await until(lambda: len(tried) == 2, "it is tried again")
        at = await in_thread(step)()
        await until(lambda: step() >= at + 2, "the other goes on")
        assert len(tried) == 2, "and then it rests"
