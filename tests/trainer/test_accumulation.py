"""What the thread that computes tells the core of a trainer, and the two sums that it fills."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer_agent.averaging.contributor import Sending
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.trainer import events as e
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.accumulation import Accumulation
from peer_agent.trainer.follower import Follower
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import TRIES, DeviceBatch
from tests.agent.scripted_site import PATIENCE_S, TRAINER, OwnAccess
from tests.protocol.trainer.stage import cut
from tests.training.commits import RUN, record_after, small_recipe, some_shards
from tests.training.test_short_memory import on

UNITS = [Unit(0, 0, start, start + 4) for start in (0, 4)]


def accumulation(busy: asyncio.Lock | None = None) -> Accumulation:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    return Accumulation(trainer, grid_of(trainer.replica.layout.elements), busy or asyncio.Lock())


async def keeps(work: Accumulation, unit: Unit) -> int:
    """Computed and kept; its tokens."""
    result = await work.compute(e.Compute(1, (unit,)), lambda _: True)
    assert isinstance(result, e.Computed)
    work.keep()
    return sum(result.loss_tokens)


def freezes(work: Accumulation, tokens: int) -> Sending | None:
    weights = (m.Weight(0, work.grid.chunks, tokens),)
    return work.freeze(e.Freeze(2, cut(codec="fp32"), weights))


async def test_a_unit_weighs_the_tokens_that_it_has() -> None:
    """Shard 1 ends in a short sample, whose place is random; the mean divides by what is there (rule 33)."""
    work = accumulation()
    units = [Unit(0, 1, start, start + 42) for start in range(0, 126, 42)]
    done = [await work.compute(e.Compute(job, (unit,)), lambda _: True) for job, unit in enumerate(units)]
    work.close()
    _, each = work.trainer.replica.recipe.loss_units_in(1)
    weights = [result.loss_tokens[0] for result in done if isinstance(result, e.Computed)]
    assert sorted(weights)[1:] == [42 * each, 42 * each]
    assert min(weights) == 41 * each + 3011 % (each + 1) - 1


async def test_what_is_kept_while_a_sum_is_offered_is_another_sum_and_the_next_offer() -> None:
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


async def test_what_is_too_old_is_thrown_away_and_the_second_sum_is_not() -> None:
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
    """Finite gradients, of one sum or of both."""
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


async def test_an_update_waits_for_the_unit_that_was_begun_and_the_unit_says_what_it_began_with(
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
        under.append(changed.wait(0.3) and unit == UNITS[0])  # time enough for an update that does not wait
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


async def ignore(*_: object) -> None:
    """What relays say does not matter here."""


async def test_work_of_a_round_without_us_is_in_the_sum_of_the_next() -> None:
    """What is held is not thrown away with the sum of the next step's (rule 30)."""
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


async def test_it_computes_for_its_part_of_the_time_and_rests_no_longer_than_that_is_wanted() -> None:
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


async def test_units_of_one_pass_are_kept_together_and_their_time_tells_how_many_come_next() -> None:
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


async def test_a_pass_for_which_memory_was_short_is_followed_by_smaller_ones() -> None:
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
