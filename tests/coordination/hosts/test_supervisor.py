"""Hosts that drive real runs: rows in a real database, and scripted peers on the site's own sockets."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from channels.layers import get_channel_layer
from django.db import OperationalError
from django.db.models import Sum
from django.db.models.functions import Now
from django.utils import timezone

from accounts.services import revoke_machine
from coordination import presence, store
from coordination.channel_layer.messages import RunMoved, watchers_of
from coordination.hosts import claims, host, supervisor
from coordination.models import Election, Presence
from coordination.snapshots import admit_hash
from coordination.threads import in_thread
from coordination.uploads import take_snapshot
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import advance
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import encode_recipe
from runs.ledger.records import settled_units
from runs.lifecycle.drafts import take_back
from runs.lifecycle.membership import add_member, let_back, remove_member, remove_person
from runs.lifecycle.services import end_run, extend_run, pause_run, resume_run
from runs.models import Head, LeaseMark, LedgerEntry, LogEntry, Member, Release, Run, Snapshot
from tests.coordination.engines import PATIENCE_S, fresh_database, use_layer
from tests.coordination.example_run import Example, example_run
from tests.coordination.peer_link import credential_of, identity_of
from tests.coordination.peers import Contributor, Reducer, taking_part
from tests.coordination.running import (
    assemble_long,
    at_work,
    head,
    hosts,
    other_process,
    require_whole_log,
    steps_on,
    until,
    until_step,
)
from tests.runs.factories import ELEMENTS, RECIPE, opened, owned, state_bytes

LONG = 10_000  # steps: more than any test makes
LAST = 12  # the run finishes at this step
ENGINES = ("sqlite and memory", "postgresql and redis")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> Iterator[str]:
    """Run the test on a site with one process, and on a site with several processes that share PostgreSQL and Redis."""
    database, _, layer = request.param.partition(" and ")
    use_layer(layer, request, settings)
    with fresh_database(database, request, tmp_path) as url:
        yield url


@pytest.fixture
async def messages(engine: str) -> AsyncIterator[Any]:
    layer: Any = get_channel_layer()
    yield layer
    await layer.flush()


@pytest.fixture
def example(engine: str, messages: Any) -> Example:
    return assemble_long(LONG)


class TestARun:
    async def test_goes_from_the_first_hello_to_its_last_snapshot(self, example: Example) -> None:
        await in_thread(Run.objects.update)(
            recipe=encode_recipe(msgspec.structs.replace(RECIPE, target_steps=LAST)).decode()
        )
        async with hosts(), at_work(example) as (teo, noor):
            await until_step(LAST)
            await until(lambda: teo.snapshots_asked + noor.snapshots_asked == [LAST], "one of them hands in its state")
            await until(lambda: LogEntry.objects.filter(step=LAST).exclude(state_digest="").exists(), "they agree")
            await until(Election.objects.filter(step=LAST).exists, "the site knows whom it asked")
            await in_thread(self._hand_in)(example.run, LAST)
            await until(Release.objects.exists, "the host finishes the run")
            await until(lambda: "finished" in teo.states and "finished" in noor.states, "all are told")
        await in_thread(self._look_at)(example.run)

    def _hand_in(self, run: Run, step: int) -> None:
        """Upload a snapshot as the elected machine does, with the hash that most replicas report."""
        election, entry = Election.objects.get(run=run, step=step), LogEntry.objects.get(step=step)
        data = state_bytes(step=step, index=step, log_digest=entry.digest)
        admit_hash(run, index=step, step=step, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
        take_snapshot(election=election, body=io.BytesIO(data), size=len(data))
        assert run.snapshots.count() == 2

    def _look_at(self, run: Run) -> None:
        require_whole_log(run)
        run.refresh_from_db()
        assert run.state == Run.State.FINISHING
        assert (head().owner, head().claim_expires) == ("", None), "the claim was let go of"
        samples = LogEntry.objects.aggregate(Sum("samples"))["samples__sum"]
        assert LedgerEntry.objects.aggregate(Sum("samples"))["samples__sum"] == samples
        settled = sum(unit.samples for unit in settled_units(run))
        assert samples == settled <= LeaseMark.objects.aggregate(Sum("mark"))["mark__sum"]
        told = list(run.activity.order_by("id").values_list("kind", flat=True))
        assert told.count("joined") == 3
        assert told.count("step") == LAST

    async def test_is_seen_by_pages_while_it_goes(self, example: Example) -> None:
        async with hosts(), at_work(example):
            await until(lambda: len(presence.online(example.run)) == 3, "who is there is shown")
            shown = await in_thread(Presence.objects.get)(run=example.run)
            assert (bool(shown.phase), shown.target) == (True, RECIPE.target_batch)
            await until(lambda: presence.last_plan(example.run), "the last plan is shown")
            assert len(await in_thread(presence.links)(example.run)) == 3

    async def test_tells_those_who_watch_when_a_step_is_in_the_log(self, example: Example) -> None:
        layer: Any = get_channel_layer()
        ear = await layer.new_channel()
        await layer.group_add(watchers_of(example.run.run_id), ear)
        async with asyncio.timeout(PATIENCE_S), hosts(), at_work(example):
            for told in range(1, 4):
                assert await layer.receive(ear) == RunMoved()
                assert (await in_thread(head)()).step >= told

    async def test_rests_while_its_organizer_wants_it_to(self, example: Example) -> None:
        async with hosts(), at_work(example) as (teo, _):
            await until_step(2)
            await in_thread(pause_run)(run=example.run)
            await until(lambda: teo.states[-1:] == ["paused"], "its volunteers are told")
            at = (await in_thread(head)()).step
            await until(lambda: "paused" in Run.objects.get().waiting_for, "the page says so")
            for _ in range(8):  # the host answers a report at once; waiting for ticks would take seconds
                await teo.report()
            assert (await in_thread(head)()).step <= at + 1, "only what was under way may still commit"
            await in_thread(resume_run)(run=example.run)
            await steps_on()
        await in_thread(require_whole_log)(example.run)

    async def test_leases_nothing_before_its_start_and_then_begins_by_itself(
        self, example: Example, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = timezone.now() + timedelta(days=3)
        passed, at = timedelta(), Run.later_start
        monkeypatch.setattr(Run, "later_start", lambda run, now=None: at(run, (now or timezone.now()) + passed))
        await in_thread(Run.objects.update)(starts_at=start)
        async with at_work(example) as (teo, noor):
            for _ in range(2):  # the second time as after a restart of the site
                async with hosts():
                    await until(lambda: teo.states[-1:] == noor.states[-1:] == ["waiting"], "its volunteers are told")
                    await until(lambda: "the run starts on" in Run.objects.get().waiting_for, "the page is told")
                    await teo.report()
                    assert not await in_thread(LeaseMark.objects.exists)()
                    teo.states.clear()
            passed = timedelta(days=3)
            async with hosts():
                await until_step(2)
        assert (await in_thread(Run.objects.get)()).starts_at == start, "nobody has changed it"

    async def test_goes_on_without_a_machine_that_is_revoked(self, example: Example) -> None:
        async with hosts(), at_work(example) as (teo, noor):
            await until_step(2)
            await in_thread(revoke_machine)(machine=example.noor.machine)
            await until(lambda: noor.refused == "E214", "it is cut off")
            await steps_on(5)
            last = await in_thread(lambda: LogEntry.objects.latest("index").peers)()
            assert (last, teo.refused) == (1, "")
        await in_thread(require_whole_log)(example.run)

    async def test_goes_on_without_a_member_who_is_removed(self, example: Example) -> None:
        await in_thread(Run.objects.update)(visibility=Run.Visibility.PRIVATE)
        await in_thread(add_member)(run=example.run, name="Teo")
        member = await in_thread(add_member)(run=example.run, name="Noor")
        async with hosts(), at_work(example) as (teo, noor):
            await until_step(2)
            await in_thread(remove_member)(member=member)
            await until(lambda: noor.refused == "E324", "it is cut off")
            await steps_on(5)
            last = await in_thread(lambda: LogEntry.objects.latest("index").peers)()
            assert (last, teo.refused) == (1, "")
            identity = identity_of(await in_thread(credential_of)(example.noor, example.run), example.noor.key)
            async with taking_part(Contributor, identity, example.run.run_id) as back:
                await until(lambda: back.refused == "E305", "a credential that still lasts lets nobody in")
        await in_thread(require_whole_log)(example.run)

    async def test_goes_on_without_a_person_removed_while_public(self, example: Example) -> None:
        both = msgspec.structs.replace(RECIPE, minimum_trainers=2, target_steps=LONG, snapshot_every=1000)
        # with minimum_trainers=1, one machine could make the steps before the other contributes
        await in_thread(Run.objects.update)(recipe=encode_recipe(both).decode())
        async with hosts(), at_work(example) as (teo, noor):
            credit = LedgerEntry.objects.filter(person=example.noor.machine.person)
            await until(credit.exists, "Noor's machine has given something")
            await in_thread(remove_person)(run=example.run, name="Noor")
            await until(lambda: noor.refused == "E324", "it is cut off")
            at = (await in_thread(head)()).step
            await steps_on(5)
            last = await in_thread(lambda: LogEntry.objects.filter(step__gt=at + 1).values_list("peers", flat=True))()
            assert (set(await in_thread(list)(last)), teo.refused) == ({1}, ""), "from the next round on"
            assert await in_thread(credit.exists)(), "what it gave stays counted"
            identity = identity_of(await in_thread(credential_of)(example.noor, example.run), example.noor.key)
            async with taking_part(Contributor, identity, example.run.run_id) as back:
                await until(lambda: back.refused == "E324", "a credential that still lasts lets nobody in")
            await in_thread(let_back)(member=await in_thread(Member.objects.get)())
            async with taking_part(Contributor, identity, example.run.run_id) as again:
                await until(lambda: again.records, "undone, it takes part again")
        await in_thread(require_whole_log)(example.run)

    async def test_is_taken_back_to_a_draft_while_nobody_has_made_a_step(self, example: Example) -> None:
        waits = msgspec.structs.replace(RECIPE, minimum_trainers=3, target_steps=LAST)
        await in_thread(Run.objects.update)(recipe=encode_recipe(waits).decode())
        async with hosts() as task, at_work(example) as (teo, noor):
            await until(lambda: teo.fences and noor.fences, "both wait for a third")
            helper = await in_thread(owned)(example.teo.machine.person, "nas")
            auxiliary = identity_of(await in_thread(credential_of)(helper, example.run, Role.AUXILIARY), helper.key)
            async with taking_part(Reducer, auxiliary, example.run.run_id) as nas:
                await until(lambda: nas.fences, "so does an auxiliary")
                await in_thread(take_back)(run=example.run)
                await until(lambda: nas.refused == "E308", "it is sent away too")
            await until(lambda: teo.refused == noor.refused == "E308", "they are sent away")
            identity = identity_of(await in_thread(credential_of)(example.noor, example.run), example.noor.key)
            async with taking_part(Contributor, identity, example.run.run_id) as back:
                await until(lambda: back.refused == "E308", "nobody comes in")
            run = await in_thread(Run.objects.get)()
            assert (run.state, run.waiting_for) == (Run.State.DRAFT, "")
            await in_thread(self._open_again)(example.run)
            async with at_work(example):
                await until_step(2)
            assert not task.done()
        await in_thread(require_whole_log)(example.run)
        assert min(await in_thread(fences_of)(example.run)) == 3, (
            "the first host and whatever it still had in hand are fenced off"
        )

    def _open_again(self, run: Run) -> None:
        Snapshot.objects.create(run=run, index=0, step=0, state_digest="0" * 16, file="f" * 64, size=3)
        recipe = encode_recipe(msgspec.structs.replace(RECIPE, target_steps=LONG)).decode()
        Run.objects.update(state=Run.State.OPEN, elements=ELEMENTS, recipe=recipe)

    async def test_is_ended_early_at_the_step_it_has_made(self, example: Example) -> None:
        async with hosts(), at_work(example) as (teo, noor):
            await until_step(2)
            await in_thread(end_run)(run=example.run)
            await until(lambda: "finishing" in teo.states and "finishing" in noor.states, "all are told")
            await until(lambda: teo.snapshots_asked + noor.snapshots_asked, "one of them hands in its state")
            step = (await in_thread(head)()).step
            assert teo.snapshots_asked + noor.snapshots_asked == [step]
            entry = LogEntry.objects.filter(step=step).exclude(state_digest="")
            await until(entry.exists, "they agree")
            await until(Election.objects.filter(step=step).exists, "the site knows whom it asked")
            await in_thread(self._hand_in)(example.run, step)
            await until(Release.objects.exists, "the host finishes the run")
            await until(lambda: "finished" in teo.states and "finished" in noor.states, "all are told again")
            assert (await in_thread(head)()).step == step
        await in_thread(require_whole_log)(example.run)

    async def test_is_made_longer_while_it_goes(self, example: Example) -> None:
        recipe = encode_recipe(msgspec.structs.replace(RECIPE, target_steps=LAST)).decode()
        await in_thread(Run.objects.update)(recipe=recipe)
        async with hosts(), at_work(example):
            await until_step(2)
            await in_thread(extend_run)(run=example.run, target_steps=LAST * 2)
            await until_step(LAST * 2)
        await in_thread(require_whole_log)(example.run)

    async def test_goes_on_with_the_samples_of_a_peer_that_is_lost(self, example: Example) -> None:
        async with hosts(), at_work(example) as (teo, noor):
            await until_step(2)
            await noor.link.leave()
            await steps_on(6)
            told = await in_thread(lambda: set(example.run.activity.values_list("kind", flat=True)))()
            assert {"left", "step"} <= told
            assert len(teo.records) > 6
        await in_thread(require_whole_log)(example.run)


def fences_of(run: Run) -> list[int]:
    return [msgspec.json.decode(sealed.head.payload)["fence"] for sealed in store.sealed_from(run, 1, 1000)]


def take_away(run: Run) -> None:
    Head.objects.filter(run=run).update(claim_expires=Now() - timedelta(seconds=1))
    assert claims.claim(run, "another host") is not None


class TestAHost:
    async def test_that_was_deposed_commits_nothing_more(self, example: Example) -> None:
        async with hosts(), at_work(example) as (teo, _):
            await until_step(2)
            driving = [task for task in asyncio.all_tasks() if task.get_name().startswith("host ")]
            await in_thread(take_away)(example.run)
            before = await in_thread(head)()
            commits = len(teo.records)
            await finished(driving)
            after = await in_thread(head)()
            assert (after.step, after.fence, after.owner) == (before.step, before.fence, "another host")
            assert len(teo.records) <= commits + 1
            await in_thread(claims.release)(example.run, "another host", before.fence)
            await until(lambda: head().fence == before.fence + 1, "the run is taken again")
            await steps_on()
            assert set(teo.fences) - {2} == {1, 3}, "a socket that looked meanwhile has said hello to the other host"
        assert set(await in_thread(fences_of)(example.run)) == {1, 3}, "and no commit is of that"
        await in_thread(require_whole_log)(example.run)

    async def test_outlives_a_database_that_does_not_answer_for_a_while(
        self, example: Example, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        away = {claims: "live_runs", store: "directed"}
        async with hosts() as task, at_work(example):
            await until_step(2)
            for room, name in away.items():
                with monkeypatch.context() as patch:
                    asked = Asked(OperationalError("the server closed the connection unexpectedly"))
                    patch.setattr(room, name, asked)
                    await until(asked.was, f"{name} was asked")
            await steps_on()
            assert not task.done()
        await in_thread(require_whole_log)(example.run)


class Asked:
    def __init__(self, error: Exception) -> None:
        self.error, self.times = error, 0

    def __call__(self, *_: object) -> Any:
        self.times += 1
        raise self.error

    def was(self) -> bool:
        return self.times > 0


async def finished(waited: list["asyncio.Task[Any]"]) -> None:
    _, pending = await asyncio.wait(waited, timeout=PATIENCE_S)
    assert not pending, "it goes on"


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql and redis"], indirect=True)
class TestTwoProcesses:
    async def test_one_hosts_and_the_other_takes_over_when_it_is_killed(
        self, example: Example, engine: str, settings: Any
    ) -> None:
        with other_process(engine, settings) as process:
            await until(lambda: head().owner, "the other process has the run")
            owner = (await in_thread(head)()).owner
            async with hosts(), at_work(example) as (teo, noor):
                await until_step(5)
                now = await in_thread(head)()
                assert now.owner == owner, "who comes later gets nothing"
                process.kill()
                await in_thread(Head.objects.update)(claim_expires=Now() - timedelta(seconds=1))
                following = now.fence + 1
                await until(lambda: head().fence == following, "this process takes over")
                await steps_on(5)
                await until(lambda: all(t.records[-1].fence == following for t in (teo, noor)), "both follow it")
            told = [list(dict.fromkeys(trainer.fences)) for trainer in (teo, noor)]  # a host may ask twice
            assert told == [[now.fence, following]] * 2
        assert [record.index for record in teo.records] == list(range(1, len(teo.records) + 1))
        await in_thread(require_whole_log)(example.run)

    async def test_a_host_outlives_the_loss_of_all_its_connections(self, example: Example, engine: str) -> None:
        async with hosts() as task, at_work(example):
            await until_step(3)
            await in_thread(end_all_sessions)(engine)
            await steps_on(5)
            assert not task.done()
        await in_thread(require_whole_log)(example.run)


def end_all_sessions(url: str) -> None:
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
    with psycopg.connect(url, autocommit=True) as control:
        control.execute(ours, (control.info.backend_pid,))


@pytest.fixture
def short(request: pytest.FixtureRequest, tmp_path: Any, settings: Any) -> Any:
    use_layer("memory", request, settings)
    with fresh_database("sqlite", request, tmp_path):
        yield example_run()


async def test_whoever_breaks_a_host_is_left_out_and_the_run_goes_on(
    short: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    noor = PeerId(short.noor.machine.peer_id)
    broke: list[int] = []

    def fragile(state: Any, event: e.Event, now: float, seed: int) -> list[e.Command]:
        if isinstance(event, e.Received) and event.peer == noor and state.step >= 2 and state.fence < 3:
            broke.append(state.fence)
            state.step += 5  # leave a half-applied change behind
            raise OverflowError("cannot convert float infinity to integer")
        return advance(state, event, now, seed)

    monkeypatch.setattr(host, "advance", fragile)
    async with hosts(), at_work(short) as (teo, other):
        await until(lambda: other.refused == "E371", "it is told")
        await steps_on(3)
        assert (broke, teo.refused) == ([1], "")
    assert (await in_thread(Head.objects.get)()).fence == 2


async def test_unloadable_run_rests_while_other_runs_have_hosts(
    short: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await in_thread(opened)(short.run.organizer, slug="riddles")
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
        return Head.objects.get(run=short.run).step

    async with hosts(), at_work(short):
        await until(lambda: step() >= 2, "the other goes")
        await until(lambda: len(tried) == 2, "it is tried again")
        at = await in_thread(step)()
        await until(lambda: step() >= at + 2, "the other goes on")
        assert len(tried) == 2, "and then it rests"
