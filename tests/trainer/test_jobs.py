"""Updates are fetched while other jobs run, and applied in order unless they are no longer wanted."""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from peer_agent.averaging.contributor import Sending
from peer_agent.machine.home import Home
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import Snapshot
from peer_agent.protocol.trainer import events as e
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.collaboration import Collaboration
from peer_agent.trainer.jobs import Accumulation, Follower, Jobs
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import TRIES, DeviceBatch
from tests.agent.scripted_site import PATIENCE_S, TRAINER, OwnAccess, greeting
from tests.network.loopback import turns
from tests.protocol.trainer.stage import commit, cut
from tests.training.commits import RUN, record_after, small_recipe, some_shards
from tests.training.test_short_memory import on

UNITS = [Unit(0, 0, start, start + 4) for start in (0, 4)]


def accumulation(busy: asyncio.Lock | None = None) -> Accumulation:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    return Accumulation(trainer, grid_of(trainer.replica.layout.elements), busy or asyncio.Lock())


async def keeps(work: Accumulation, unit: Unit) -> int:
    result = await work.compute(e.Compute(1, (unit,)), lambda _: True)
    assert isinstance(result, e.Computed)
    work.keep()
    return sum(result.loss_tokens)


def freezes(work: Accumulation, tokens: int) -> Sending | None:
    weights = (m.Weight(0, work.grid.chunks, tokens),)
    return work.freeze(e.Freeze(2, cut(codec="fp32"), weights))


async def test_a_unit_weighs_the_tokens_that_it_has() -> None:
    """Shard 1 has a short sample in a random position. The mean divides by the tokens that exist (rule 33)."""
    work = accumulation()
    units = [Unit(0, 1, start, start + 42) for start in range(0, 126, 42)]
    done = [await work.compute(e.Compute(job, (unit,)), lambda _: True) for job, unit in enumerate(units)]
    work.close()
    _, each = work.trainer.replica.recipe.loss_units_in(1)
    weights = [result.loss_tokens[0] for result in done if isinstance(result, e.Computed)]
    assert sorted(weights)[1:] == [42 * each, 42 * each]
    assert min(weights) == 41 * each + 3011 % (each + 1) - 1


async def test_work_kept_during_an_offer_is_another_sum_offered_next() -> None:
    work, alone = accumulation(), accumulation()
    first = freezes(work, await keeps(work, UNITS[0]))
    tokens = await keeps(work, UNITS[1])
    assert first is not None
    assert freezes(work, tokens_of(first)) is first, "a resend has the same bytes"
    work.remove_averaged(e.Settle(((0, work.grid.chunks),)))
    second, expected = freezes(work, tokens), freezes(alone, await keeps(alone, UNITS[1]))
    work.close()
    alone.close()
    assert second is not None
    assert expected is not None
    assert second.root == expected.root != first.root


async def test_after_a_void_the_next_offer_is_both() -> None:
    work, alone = accumulation(), accumulation()
    tokens = await keeps(work, UNITS[0])
    freezes(work, tokens)
    tokens += await keeps(work, UNITS[1])
    work.release()
    together = freezes(work, tokens)
    for unit in UNITS:
        await keeps(alone, unit)
    expected = freezes(alone, tokens)
    work.close()
    alone.close()
    assert together is not None
    assert expected is not None
    for mine, other in zip(together.payloads, expected.payloads, strict=True):
        np.testing.assert_allclose(np.frombuffer(mine, "<f4"), np.frombuffer(other, "<f4"), atol=1e-7)


async def test_old_sum_is_discarded_and_the_second_one_kept() -> None:
    work, alone = accumulation(), accumulation()
    freezes(work, await keeps(work, UNITS[0]))
    tokens = await keeps(work, UNITS[1])
    work.release()
    work.discard_held()
    left, expected = freezes(work, tokens), freezes(alone, await keeps(alone, UNITS[1]))
    work.close()
    alone.close()
    assert left is not None
    assert expected is not None
    assert left.root == expected.root


async def test_what_adds_up_to_no_number_is_not_offered() -> None:
    """Finite gradients can overflow in a single sum, or in the total of both sums."""
    one, both = accumulation(), accumulation()
    for work, value in ((one, float("inf")), (both, 3e38)):
        tokens = await keeps(work, UNITS[0])
        work.trainer._sum.fill_(value)
    assert freezes(one, tokens) is None
    assert freezes(both, tokens) is not None
    both.release()
    await keeps(both, UNITS[1])
    both.trainer._sum.fill_(3e38)
    assert freezes(both, tokens) is None
    one.close()
    both.close()


async def test_update_waits_for_a_begun_unit_which_names_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")
    replica = Replica(small_recipe())
    follower = Follower(access.home, access, DataLinks(access, ignore), replica)
    trainer = Trainer(replica, RUN, some_shards())
    work = Accumulation(trainer, grid_of(replica.layout.elements), follower.busy)
    begun, changed = threading.Event(), threading.Event()
    begins, applies, under = trainer.begin, replica.apply, list[bool]()

    def begin(unit: Unit) -> object:
        begun.set()
        under.append(changed.wait(0.3) and unit == UNITS[0])  # enough time for an update that does not wait
        return begins(unit)

    def apply(*arguments: Any) -> None:
        applies(*arguments)
        changed.set()

    monkeypatch.setattr(trainer, "begin", begin)
    monkeypatch.setattr(replica, "apply", apply)
    average = np.full(replica.layout.elements, 1e-3, np.float32)
    unit = asyncio.create_task(work.compute(e.Compute(1, (UNITS[0],)), lambda _: True))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    update = asyncio.create_task(follower.apply(record_after(replica, average), "d" * 64, average))
    following = asyncio.create_task(work.compute(e.Compute(2, (UNITS[1],)), lambda _: True))
    results = [await unit, await following]
    await update
    work.close()
    assert under == [False, False]
    assert [result.base for result in results if isinstance(result, e.Computed)] == [0, 1]


def tokens_of(sending: Sending) -> int:
    return sending.weights[0].tokens


async def test_work_of_a_round_without_us_is_in_the_sum_of_the_next() -> None:
    """Held work is not discarded along with the next step's sum (rule 30)."""
    recipe = small_recipe()
    sums = []
    for holds in (False, True):
        trainer = Trainer(Replica(recipe), RUN, some_shards())
        work = Accumulation(trainer, grid_of(trainer.replica.layout.elements), asyncio.Lock())
        for job, start in enumerate((0, 8)):
            await work.compute(e.Compute(job, (Unit(0, 0, start, start + 8),)), lambda _: True)
            work.keep()
            if holds and not job:
                work.hold()
                assert not trainer.units
        work.hold()
        work.close()
        sums.append(work.accumulator._sum.copy())
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-4, atol=1e-5)
    assert abs(sums[0]).max() > 0


async def test_compute_rests_by_its_duty_and_no_longer_than_wanted() -> None:
    work = accumulation()
    work.duty_percent = 20
    began = time.monotonic()
    await keeps(work, UNITS[0])
    took_s = time.monotonic() - began
    began = time.monotonic()
    await keeps(work, UNITS[1])
    assert time.monotonic() - began > 2 * took_s, "four times as long, but for what is not computing"
    work._rests_until = time.monotonic() + 1000
    asked: list[int] = []

    def is_wanted(job: int) -> bool:
        asked.append(job)
        return len(asked) < 2

    assert await work.compute(e.Compute(7, (UNITS[0],)), is_wanted) is None
    assert asked == [7, 7], "before anything was begun"
    work.close()


async def test_units_of_a_pass_are_kept_together_and_size_the_next() -> None:
    work, alone = accumulation(), accumulation()
    work.device_batch = DeviceBatch(64)
    told: list[tuple[int, int]] = []
    took = work.device_batch.took
    work.device_batch.took = lambda units, samples, _: (told.append((units, samples)), took(units, samples, 1e-3))  # type: ignore[assignment,func-returns-value]
    for job in range(TRIES):
        result = await work.compute(e.Compute(job, (UNITS[0],)), lambda _: True)
        assert isinstance(result, e.Computed)
        assert result.in_one_pass == (2 if job == TRIES - 1 else 1)
    result = await work.compute(e.Compute(9, tuple(UNITS)), lambda _: True)
    assert isinstance(result, e.Computed)
    assert told == [(1, 4)] * TRIES + [(2, 8)]
    work.keep()
    each = [await keeps(alone, unit) for unit in UNITS]
    assert result.loss_tokens == tuple(each)
    found, expected = work.trainer.take_sum(), alone.trainer.take_sum()
    assert found.units == expected.units
    np.testing.assert_allclose(found.gradient_sum, expected.gradient_sum, rtol=1e-4, atol=1e-4)
    work.close()
    alone.close()


async def test_what_a_pass_finishes_after_the_cut_is_not_in_the_sum() -> None:
    work = accumulation()
    wanted = iter([True, False])
    assert await work.compute(e.Compute(1, tuple(UNITS)), lambda _: next(wanted)) is None
    assert work.trainer.take_sum().units == ()
    work.close()


async def test_after_a_pass_that_was_not_finite_units_come_one_by_one() -> None:
    work = accumulation()
    work.device_batch = DeviceBatch(64)
    work.device_batch._found = 2
    before = work.trainer.replica.parameters.clone()
    work.trainer.replica.parameters[:100] = float("nan")
    assert await work.compute(e.Compute(1, tuple(UNITS)), lambda _: True) == e.NotFinite(1, in_one_pass=1)
    assert await work.compute(e.Compute(2, (UNITS[0],)), lambda _: True) == e.NotFinite(2, in_one_pass=1)
    work.trainer.replica.parameters.copy_(before)
    result = await work.compute(e.Compute(3, (UNITS[1],)), lambda _: True)
    assert isinstance(result, e.Computed)
    assert result.in_one_pass == 2
    work.close()


async def test_pass_short_of_memory_is_followed_by_smaller_ones() -> None:
    work = accumulation()
    work.device_batch = DeviceBatch(64)
    work.device_batch._found = 4
    units = tuple(Unit(0, 0, start, start + 4) for start in range(0, 16, 4))
    on(work.trainer, 9)
    result = await work.compute(e.Compute(1, units), lambda _: True)
    assert isinstance(result, e.Computed)
    assert result.loss_tokens == (4 * 23,) * 4
    assert result.in_one_pass == work.device_batch.most == 2, "8 samples fit"
    work.close()


@pytest.mark.parametrize("is_open", [True, False])
async def test_data_of_the_next_units_are_fetched_while_computing(is_open: bool) -> None:
    """The next batch is prepared only if its shard is on disk, so that no other unit waits for a download."""
    asked: list[int] = []
    started: list[Any] = []
    core = SimpleNamespace(queue=deque([Unit(0, 5, 0, 4), Unit(0, 9, 0, 4)]), coming=(9, 7), in_one_pass=1)
    jobs = Jobs(cast("Any", SimpleNamespace(core=core, start=started.append)))
    jobs.shards = cast("Any", SimpleNamespace(prefetch=asked.extend, is_open=lambda shard: is_open and shard == 5))
    trainer = SimpleNamespace(coming=(Unit(0, 1, 0, 4),))
    jobs.accumulation = cast("Any", SimpleNamespace(trainer=trainer))
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert asked == [3, 5, 9, 9, 7]
    assert trainer.coming == ((core.queue[0],) if is_open else ())
    core.in_one_pass = 2
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert trainer.coming == (), "of the two that come next, one is still to be fetched"
    jobs.shards = cast("Any", SimpleNamespace(prefetch=asked.extend, is_open=lambda _: is_open))
    await jobs.compute(e.Compute(1, (Unit(0, 3, 0, 4),)))
    assert trainer.coming == (tuple(core.queue) if is_open else ())
    core.queue.clear()
    await jobs.compute(e.Compute(2, (Unit(0, 5, 0, 4),)))
    assert trainer.coming == ()
    for part in started:
        part.close()


async def test_the_replica_is_not_held_while_data_are_waited_for() -> None:
    """An update waits for the unit being computed. If that unit waited for the Hub, the machine would miss every
    round.
    """
    told, computed = list[Any](), list[e.Compute]()
    is_there, core = asyncio.Event(), SimpleNamespace(in_hand=SimpleNamespace(job=1))

    async def compute(action: e.Compute, is_wanted: Callable[[int], bool]) -> str:
        assert is_wanted(1)
        computed.append(action)
        return "result"

    async def ready(shards: list[int], is_wanted: Callable[[], bool]) -> bool:
        assert shards == [3, 3]
        await is_there.wait()
        return is_wanted()

    jobs = Jobs(cast("Any", SimpleNamespace(core=core, handle=told.append)))
    jobs.follower = cast("Any", object())
    jobs.accumulation = cast("Any", SimpleNamespace(compute=compute, trainer=SimpleNamespace(compiled=None)))
    jobs.shards = cast("Any", SimpleNamespace(ready=ready))
    action = e.Compute(1, (Unit(0, 3, 0, 4), Unit(0, 3, 4, 8)))
    waiting = asyncio.create_task(jobs._compute(action))
    await turns()
    assert not computed
    is_there.set()
    await waiting
    assert (computed, told) == ([action], ["result"])
    core.in_hand = None  # the core has left the unit, as at the beginning of a round
    await jobs._compute(action)
    assert len(computed) == 1


async def test_as_many_data_are_kept_as_the_volunteer_says(tmp_path: Path) -> None:
    limits = Limits(threads=1, disk_gb=7)
    agent = SimpleNamespace(
        home=Home(tmp_path), access=None, owner=SimpleNamespace(limits=limits), links=None, publisher=None, view=None
    )
    jobs = Jobs(cast("Any", agent))
    snapshot = Snapshot(index=0, step=0, digest="", state_digest="", file="ab" * 32, size=1)
    _, accumulation = await jobs.become_replica(greeting(snapshot))
    accumulation.close()
    assert jobs.shards is not None
    assert jobs.shards.disk_bytes == 7 * 10**9


@pytest.mark.parametrize("is_own", [True, False])
async def test_layers_are_compiled_on_request_in_the_agents_own_loop(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own loop would not catch the error raised for a missing compiler. Such a loop also gets units one by
    one.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "as it was before")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(Trainer, "most_units", 7)
    said: list[str] = []
    agent = SimpleNamespace(
        home=Home(tmp_path),
        access=None,
        owner=SimpleNamespace(limits=Limits(threads=1, compiles=True)),
        links=None,
        publisher=None,
        view=SimpleNamespace(say=said.append),
    )
    jobs = Jobs(cast("Any", agent))
    jobs.collaboration = None if is_own else Collaboration()
    snapshot = Snapshot(index=0, step=0, digest="", state_digest="", file="ab" * 32, size=1)
    _, accumulation = await jobs.become_replica(greeting(snapshot))
    accumulation.close()
    assert (accumulation.trainer.compiled is not None) == is_own
    assert accumulation.device_batch.most == (7 if is_own else 1)
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == (str(tmp_path / "cache" / "compiled") if is_own else None)
    for error in ("", "no compiler", "no compiler"):
        if accumulation.trainer.compiled is not None:
            accumulation.trainer.compiled.error = error
        jobs._tell_of_compiling(accumulation.trainer.compiled)
    assert said == (["Layers cannot be compiled here; training without: no compiler"] if is_own else [])


@pytest.mark.parametrize(("wanted", "told"), [(7, [e.Applied(7, "5" * 16)]), (8, [])])
async def test_update_of_an_abandoned_state_is_not_made(wanted: int, told: list[e.Event]) -> None:
    """A snapshot was loaded after the averages were requested, so the averages no longer match the state."""
    heard: list[e.Event] = []
    agent: Any = SimpleNamespace(core=SimpleNamespace(job=wanted), handle=heard.append)
    jobs = Jobs(agent)

    async def apply(*_: object) -> str:
        return "5" * 16

    jobs.follower, jobs.accumulation = SimpleNamespace(apply=apply), SimpleNamespace()  # type: ignore[assignment]
    await jobs.apply(e.Apply(7, commit(1), patient=False), np.zeros(4, np.float32))
    assert heard == told


class HeldBack(Replica):
    """A replica that updates at once, but whose digest waits until the test allows it."""

    def __init__(self) -> None:
        super().__init__(small_recipe())
        self.asked, self.go_on = threading.Event(), threading.Event()

    def digest(self) -> str:
        self.asked.set()
        assert self.go_on.wait(PATIENCE_S)
        return super().digest()


async def ignore(*_: object) -> None:
    """Ignore a relay's message."""


async def test_a_state_that_is_just_changing_is_not_spoken_of(tmp_path: Path) -> None:
    """A report sent during an update would list the old step's work under the new step, and would count as a lie."""
    replica = HeldBack()
    average = np.full(replica.layout.elements, 1e-3, np.float32)
    access = OwnAccess(tmp_path, TRAINER, Role.TRAINER, "")
    follower = Follower(access.home, access, DataLinks(access, ignore), replica)

    record = record_after(replica, average)
    applying = asyncio.create_task(follower.apply(record, "d" * 64, average))
    assert await asyncio.to_thread(replica.asked.wait, PATIENCE_S)
    assert (replica.step, applying.done()) == (1, False)
    replica.go_on.set()
    assert await applying == replica.digest()
