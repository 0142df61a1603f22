"""The trainer's agent against a scripted site: its messages and retries, and how it ends."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.averaging.contributor import Accumulator
from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.network.uplink import UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import Plan
from peer_agent.protocol.messages.machine import OwnerLimits
from peer_agent.protocol.sealed import planned_for, seal_plan
from peer_agent.protocol.trainer import advance, following
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.wire import Kind
from peer_agent.relay.place import Place, own_certificate
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer import agent as agent_module
from peer_agent.trainer import jobs
from peer_agent.trainer import jobs as follower_module
from peer_agent.trainer.agent import Agent
from peer_agent.training import units as units_module
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import batch_of
from tests.agent.scripted_site import (
    PATIENCE_S,
    RECIPE,
    TRAINER,
    OwnAccess,
    Site,
    commits,
    first_snapshot,
    greeting,
    site,
)
from tests.averaging.rounds import RELAY, RUN, frame, plan_of
from tests.protocol.identities import SITE_KEY, SITE_PUBLIC
from tests.training.commits import some_shards, take_units

ELEMENTS = Replica(RECIPE).layout.elements
REHELLO = m.Rehello(run=RUN, fence=1)


class Stage:
    """One agent, its site, and the messages that the agent shows to people."""

    def __init__(self, folder: Path, script: Site, place: Place | None = None) -> None:
        self.home, self.site, self.words = Home(folder), script, io.StringIO()
        self.snapshot = first_snapshot(self.home)
        access = OwnAccess(folder, TRAINER, Role.TRAINER, script.url)
        self.agent = Agent(self.home, access, MachineControl(self.home, Limits(threads=1)), View(self.words), place)
        self.running = asyncio.create_task(self.agent.run())

    def greeting(self, **changes: Any) -> m.Greeting:
        return greeting(self.snapshot, **changes)

    async def join(self) -> None:
        await self.site.linked()
        await self.site.says(REHELLO)
        assert (await self.site.hears(m.Hello)).step == -1
        await self.site.says(self.greeting(reconciled=False))
        assert (await self.site.hears(m.Hello)).step == 0
        await self.site.says(self.greeting())
        await self.site.hears(m.Report)

    def log(self, count: int) -> list[m.Commit]:
        return commits(count, ELEMENTS, grid_of(ELEMENTS).chunk_elements)


@asynccontextmanager
async def stage(folder: Path, place: Place | None = None) -> AsyncIterator[Stage]:
    async with site() as script:
        scene = Stage(folder, script, place)
        try:
            yield scene
        finally:
            scene.running.cancel()
            await asyncio.wait([scene.running])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((following, "ASK_AGAIN_S"), (agent_module, "TICK_S"), (follower_module, "PAUSE_S")):
        monkeypatch.setattr(module, name, 0.0 if name != "TICK_S" else 0.01)


async def test_agent_reports_its_households_part_and_keeps_its_pace(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.site.linked()
        await scene.site.says(REHELLO)
        assert (await scene.site.hears(m.Hello)).reserve_percent == 20
        await scene.site.says(m.Uplink(run=RUN, bytes_per_s=1_000_000), REHELLO)
        await scene.site.hears(m.Hello)
        assert UPLINK.is_paced
    assert not UPLINK.is_paced, "the next agent of this process is told anew"


async def test_few_passes_compute_several_units_and_each_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "most_units", 4)
    for name, value in {"TRIES": 1, "GAIN": 0.0, "LONGEST_S": math.inf}.items():
        monkeypatch.setattr(units_module, name, value)  # each reported speed is better than the one before
    passes: list[int] = []
    begins = Trainer.begin

    def begin(trainer: Trainer, *units: Unit) -> Any:
        passes.append(len(units))
        return begins(trainer, *units)

    monkeypatch.setattr(Trainer, "begin", begin)
    units = tuple(Unit(0, 0, start, start + 4) for start in range(0, 36, 4))
    async with stage(tmp_path) as scene:
        await scene.join()
        work = scene.agent.jobs.accumulation
        assert work is not None
        tokens = some_shards([5000])[0]
        monkeypatch.setattr(work.trainer.batches, "_make", lambda of, unit: batch_of(of, unit, run=RUN, shard=tokens))
        scene.agent.jobs.shards = None  # no shards are fetched
        await scene.site.says(m.Lease(run=RUN, fence=1, units=units, quota=36))
        while len((await scene.site.hears(m.Report)).done) < len(units):
            pass
        await scene.site.says(
            m.Cut(run=RUN, step=0, fence=1, attempt=1, round=1, codec="fp32", chunk_elements=work.grid.chunk_elements)
        )
        offer = await scene.site.hears(m.Offer)
        alone = Trainer(Replica(RECIPE), RUN, [tokens])
        taken = take_units(alone, units)
        assert offer.units == taken.units
        assert offer.loss_tokens == taken.loss_tokens
        assert offer.loss_sum == pytest.approx(taken.loss_sum, rel=1e-5)
        assert offer.norm == pytest.approx(float(np.linalg.norm(taken.gradient_sum / taken.loss_tokens)), rel=1e-3)
    assert passes[:4] == [1, 2, 4, 2]


async def test_a_round_without_this_machine_is_told_of_and_followed(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        place = {"step": 0, "fence": 1, "attempt": 1, "round": 1}
        await scene.site.says(m.SitOut(run=RUN, reason="its link is slow", **place), REHELLO)
        assert (await scene.site.hears(m.Hello)).in_doubt == (m.InDoubt(0, 1, 1),)
        assert "continues without this machine: its link is slow" in scene.words.getvalue()
        assert scene.agent.round is not None, "it takes the averages"
        await scene.site.says(m.Void(run=RUN, reason="a test", **place), REHELLO)
        assert (await scene.site.hears(m.Hello)).in_doubt == ()
        assert scene.agent.round is None


async def test_dropped_trainer_stops_sending_but_takes_the_averages(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        place = {"step": 0, "fence": 1, "attempt": 1, "round": 1}
        await scene.site.says(m.SitOut(run=RUN, reason="a test", **place), REHELLO)
        await scene.site.hears(m.Hello)
        round_ = scene.agent.round
        assert round_ is not None
        sending = round_.task = asyncio.create_task(asyncio.Event().wait())
        scene.agent._carry(e.StopSending())
        await asyncio.wait([sending], timeout=5)
        assert sending.cancelled()
        assert scene.agent.round is round_


def _plan_of_another() -> tuple[Grid, Plan]:
    """Return a plan of step 0 with one relay, to which only another trainer contributes."""
    grid = grid_of(ELEMENTS)
    offered = Accumulator(grid).offer("fp32", (m.Weight(0, grid.chunks, 5),))
    return grid, replace(plan_of([offered], grid=grid, cuts=(0, grid.chunks), reducers=(RELAY,)), step=0, fence=1)


async def test_averages_of_a_round_without_it_are_taken_as_they_come(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        grid, plan = _plan_of_another()
        await scene.site.says(planned_for(seal_plan(SITE_KEY, plan), TRAINER), REHELLO)
        await scene.site.hears(m.Hello)
        assert scene.agent.core.round is None
        average = frame(plan, plan.spans[0].span, 0, 0, bytes(4 * grid.length(0)), Kind.AVERAGE)
        await scene.agent._hear_average(RELAY, average, scene.agent.round)
        assert scene.agent.round is not None
        assert not scene.agent.round.keep_chunk(average), "it is here"
        heard = advance.heard(scene.log(1)[0], SITE_PUBLIC, TRAINER)
        assert isinstance(heard, e.CommitHeard)
        scene.agent._made(heard.record)
        assert scene.agent.round is None


async def test_plan_that_keeps_all_averages_is_answered_at_once(tmp_path: Path) -> None:
    """No chunk follows such a plan. Without a relay, the round would wait for this word until it is void."""
    async with stage(tmp_path) as scene:
        await scene.join()
        grid, plan = _plan_of_another()
        sat_out = m.SitOut(run=RUN, reason="a test", step=0, fence=1, attempt=plan.attempt, round=plan.round)
        await scene.site.says(sat_out, planned_for(seal_plan(SITE_KEY, plan), TRAINER), REHELLO)
        await scene.site.hears(m.Hello)
        for chunk in grid:
            average = frame(plan, plan.spans[0].span, chunk, 0, bytes(4 * grid.length(chunk)), Kind.AVERAGE)
            await scene.agent._hear_average(RELAY, average, scene.agent.round)
        first = await scene.site.hears(m.Arrivals)
        kept = tuple(replace(span, root=b"r" * 32) for span in plan.spans)
        await scene.site.says(planned_for(seal_plan(SITE_KEY, replace(plan, attempt=9, spans=kept)), TRAINER))
        again = await scene.site.hears(m.Arrivals)
        assert (first.attempt, again.attempt) == (plan.attempt, 9)
        assert again.holds == first.holds


async def test_snapshot_removed_from_the_site_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = follower_module.Follower.load
    tried: list[int] = []

    async def load(self: follower_module.Follower, snapshot: m.Snapshot) -> str:
        tried.append(snapshot.index)
        if len(tried) == 1:
            raise Problem.of("E326")
        return await loads(self, snapshot)

    monkeypatch.setattr(follower_module.Follower, "load", load)
    async with stage(tmp_path) as scene:
        await scene.site.linked()
        await scene.site.says(REHELLO, scene.greeting(reconciled=False))
        assert [(await scene.site.hears(m.Hello)).step for _ in range(2)] == [-1, -1]
        await scene.site.says(scene.greeting(reconciled=False))
        assert (await scene.site.hears(m.Hello)).step == 0
        assert scene.words.getvalue().count("E326") == 1


async def test_failing_side_task_ends_the_agent_with_its_error(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()

        async def fail() -> None:
            raise Problem.of("E107", reason="a test")

        scene.agent.start(fail())
        with pytest.raises(Problem, match="E107"):
            async with asyncio.timeout(PATIENCE_S):
                await scene.running


async def test_one_copy_is_handed_in_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: asyncio.Queue[int] = asyncio.Queue()

    async def hand_in(*arguments: Any) -> None:
        steps.put_nowait(arguments[2].step)
        await asyncio.Event().wait()

    monkeypatch.setattr(jobs, "hand_in", hand_in)
    async with stage(tmp_path) as scene:
        await scene.join()
        scene.agent.core.index = 1
        asked = m.Commit(run=RUN, fence=1, record=scene.log(1)[0].record, snapshot=True)
        done = asyncio.Event()

        async def last() -> None:
            done.set()

        await scene.site.says(asked, asked, REHELLO)
        await scene.site.hears(m.Hello)
        scene.agent.jobs.add(last)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
            assert await steps.get() == 0
        assert steps.empty()


@pytest.mark.parametrize("code", ["E212", "E214", "your disk is full {0}"])
async def test_a_refused_gradient_is_told_with_a_number_of_ours(tmp_path: Path, code: str) -> None:
    """A relay may be hostile. The agent quotes its message, but the relay cannot choose the error number."""
    async with stage(tmp_path) as scene:
        await scene.join()
        refused = m.SlotRefused(run=RUN, step=0, fence=1, attempt=1, slot=0, chunk=3, code=code)
        await scene.agent._hear_relay(TRAINER, refused)
        told = f"E141: A relay refused chunk 3 of this machine's gradient. The relay says: {code}. This work"
        assert told in scene.words.getvalue()
        assert scene.agent.view.events[-1].code == "E141"


async def test_it_says_goodbye_and_ends_with_the_run(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        await scene.site.says(m.State(run=RUN, state="finished", reason=""))
        await scene.site.hears(m.Leave)
        async with asyncio.timeout(PATIENCE_S):
            await scene.running


async def test_a_copy_that_is_damaged_leaves_the_cache(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        path = next((scene.home.cache / "snapshots").iterdir())
        path.write_bytes(path.read_bytes()[:-4096])
        await scene.site.linked()
        await scene.site.says(REHELLO, scene.greeting(reconciled=False))
        with pytest.raises(Problem, match="E310"):
            async with asyncio.timeout(PATIENCE_S):
                await scene.running
        assert not path.exists()


async def test_who_listens_says_where_and_by_which_certificate(tmp_path: Path) -> None:
    async with stage(tmp_path, Place("127.0.0.1", 0, 4443)) as scene:
        await scene.site.linked()
        await scene.site.says(REHELLO)
        hello = await scene.site.hears(m.Hello)
        assert (hello.url, hello.reduces, hello.keeps_log) == ("wss://127.0.0.1:4443/", True, True)
        assert hello.fingerprint == own_certificate(scene.home).fingerprint


async def test_who_can_serve_nobody_any_more_says_so_and_trains_on(tmp_path: Path) -> None:
    async with stage(tmp_path, Place("127.0.0.1")) as scene:
        await scene.join()
        listening = scene.agent.listening
        assert listening is not None
        listening.hear(None)  # type: ignore[arg-type] # no reducer can take this
        assert (await scene.site.hears(m.Hello)).url == ""
        assert scene.agent.listening is None
        assert not scene.running.done()


# --- instructions of the machine's owner ------------------------------------------------------------------------------


async def test_paused_it_answers_and_leaves_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        await scene.site.says(m.Instructions(revision=3, pause=True))
        assert (await scene.site.hears(m.MachineReport)).revision == 3
        await scene.site.hears(m.Leave)
        async with asyncio.timeout(PATIENCE_S):
            await scene.running
        assert "Finishing step" not in scene.words.getvalue()


async def test_its_limits_hold_from_the_next_unit_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        limits = OwnerLimits(threads=1, disk_gb=3, duty_percent=40)
        await scene.site.says(m.Instructions(revision=1, limits=limits))
        while (await scene.site.hears(m.MachineReport)).revision != 1:
            pass
        jobs_ = scene.agent.jobs
        assert jobs_.shards is not None
        assert jobs_.accumulation is not None
        assert (jobs_.shards.disk_bytes, jobs_.accumulation.duty_percent) == (3 * 10**9, 40)
        assert jobs_.accumulation.trainer.threads == 1
        scene.agent.owner.limits = Limits(threads=5)
        scene.agent._obey()
        assert jobs_.accumulation.trainer.threads == 5


async def test_only_credited_work_is_a_first_credit_and_only_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        record: Any = SimpleNamespace(index=1, step=12, loss=2.0, contributors=1, samples=8)
        told = []
        for part in (None, SimpleNamespace(samples=0), SimpleNamespace(samples=4), SimpleNamespace(samples=4)):
            made: Any = SimpleNamespace(record=record, own=part)
            scene.agent._made(made)
            told.append(scene.words.getvalue().count("Your first 4 samples are in the model: step 12."))
        assert told == [0, 0, 1, 1]
        assert scene.words.getvalue().count("Your first") == 1


async def test_refusals_count_in_the_open_round_until_work_is_taken(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene:
        await scene.join()
        agent, told = scene.agent, list[int]()
        agent.owner.refused = lambda refusal: told.append(refusal.step)  # type: ignore[method-assign]
        agent.owner.accepted = lambda: told.append(-1)  # type: ignore[method-assign]
        agent._open_round(m.SitOut(run=RUN, step=4, fence=1, attempt=0, round=1, reason=""))
        for step, fence in ((4, 1), (4, 2), (9, 1)):
            body = m.SlotRefused(run=RUN, step=step, fence=fence, attempt=1, slot=0, chunk=3, code="E212")
            await agent._hear_relay(RELAY, body)
        assert told == [4]
        agent._end_round()
        await agent._hear_relay(RELAY, body)
        assert told == [4]
        record: Any = SimpleNamespace(index=1, step=1, loss=2.0, contributors=1, samples=4)
        for contribution, taken in ((None, [4]), (SimpleNamespace(samples=4), [4, -1])):
            made: Any = SimpleNamespace(record=record, own=contribution)
            agent._made(made)
            assert told == taken
