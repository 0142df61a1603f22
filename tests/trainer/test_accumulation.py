"""What the thread that computes tells the core of a trainer."""

import asyncio

import numpy as np

from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.trainer import events as e
from peer_agent.trainer.accumulation import Accumulation
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, small_recipe, some_shards


async def test_a_unit_weighs_the_tokens_that_it_has() -> None:
    """Shard 1 ends in a short sample, whose place is random; the mean divides by what is there (rule 33)."""
    recipe = small_recipe()
    trainer = Trainer(Replica(recipe), RUN, some_shards())
    work = Accumulation(trainer, grid_of(trainer.replica.layout.elements), asyncio.Lock())
    units = [Unit(0, 1, start, start + 42) for start in range(0, 126, 42)]
    done = [await work.compute(e.Compute(job, unit), lambda _: True) for job, unit in enumerate(units)]
    work.close()
    each = recipe.model.context - 1
    weights = [result.loss_tokens for result in done if isinstance(result, e.Computed)]
    assert sorted(weights)[1:] == [42 * each, 42 * each]
    assert min(weights) == 41 * each + 3011 % recipe.model.context - 1


async def test_work_of_a_round_without_us_is_in_the_sum_of_the_next() -> None:
    """What is held is not thrown away with the sum of the next step's (rule 30)."""
    recipe = small_recipe()
    sums = []
    for holds in (False, True):
        trainer = Trainer(Replica(recipe), RUN, some_shards())
        work = Accumulation(trainer, grid_of(trainer.replica.layout.elements), asyncio.Lock())
        for job, start in enumerate((0, 8)):
            await work.compute(e.Compute(job, Unit(0, 0, start, start + 8)), lambda _: True)
            work.keep()
            if holds and not job:
                work.hold()
                assert not trainer.units
        work.hold()
        work.close()
        sums.append(work.accumulator._sum.copy())
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-4, atol=1e-5)
    assert abs(sums[0]).max() > 0
