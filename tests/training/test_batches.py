"""Batches: the next one is made while the one before is computed, and is the same as one that is made when needed."""

import threading
from typing import Any

import numpy as np
import pytest

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.training import Batch
from peer_agent.training.batches import Batches
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, small_recipe, some_shards

RECIPE, OTHER = CausalLM(), CausalLM(micro_batch=2)
UNITS = [Unit(0, shard, 0, 4) for shard in range(3)]
ONE, TWO, THREE = ((unit,) for unit in UNITS)


def weight(batch: Batch) -> int:
    """What it would be in its second array."""
    return int(batch[1].sum())


class Maker:
    """Says what it has made, and by which threads."""

    def __init__(self) -> None:
        self.made: list[tuple[Recipe, Unit]] = []
        self.threads: set[int] = set()
        self.has_made = threading.Semaphore(0)

    def __call__(self, recipe: Recipe, unit: Unit) -> Any:
        self.made.append((recipe, unit))
        self.threads.add(threading.get_ident())
        self.has_made.release()
        if unit.stop == 0:
            raise ValueError("no such unit")
        return np.array([unit.shard]), np.array([[unit.shard, 10 * unit.shard]])


def of(batches: Batches, recipe: Recipe, units: tuple[Unit, ...], then: tuple[Unit, ...] = ()) -> list[int]:
    """Of which shards the rows are."""
    return [int(row) for row in batches.take(recipe, units, then).batch[0]]


@pytest.fixture
def maker() -> Maker:
    return Maker()


def test_the_next_batch_is_made_before_it_is_asked_for(maker: Maker) -> None:
    batches = Batches(maker, weight)
    batches.take(RECIPE, ONE, TWO)
    assert maker.has_made.acquire(timeout=10)
    assert maker.has_made.acquire(timeout=10)
    assert of(batches, RECIPE, TWO) == [1]
    assert maker.made == [(RECIPE, *ONE), (RECIPE, *TWO)]  # once each
    assert threading.get_ident() not in maker.threads
    assert len(maker.threads) == 1


@pytest.mark.parametrize(("recipe", "units"), [(RECIPE, THREE), (OTHER, TWO), (RECIPE, TWO + THREE)])
def test_what_was_made_for_something_else_is_thrown_away(maker: Maker, recipe: Recipe, units: tuple[Unit, ...]) -> None:
    """Another unit came, or the step at which a recipe changes."""
    batches = Batches(maker, weight)
    batches.take(RECIPE, ONE, TWO)
    assert of(batches, recipe, units) == [unit.shard for unit in units]
    assert of(batches, RECIPE, TWO) == [1]
    assert maker.made == [(RECIPE, *ONE), (RECIPE, *TWO), *((recipe, unit) for unit in units), (RECIPE, *TWO)]


def test_what_goes_wrong_is_told_when_the_batch_is_needed(maker: Maker) -> None:
    batches, wrong = Batches(maker, weight), (Unit(0, 0, 0, 0),)
    batches.take(RECIPE, ONE, wrong)
    assert of(batches, RECIPE, ONE) == [0]
    batches.take(RECIPE, ONE, wrong)
    with pytest.raises(ValueError, match="no such unit"):
        batches.take(RECIPE, wrong)
    assert of(batches, RECIPE, TWO) == [1]


def test_units_of_one_pass_are_one_batch_and_each_has_its_weight(maker: Maker) -> None:
    """Each was made by itself, and all ahead."""
    batches = Batches(maker, weight)
    batches.take(RECIPE, ONE, (*THREE, *TWO))
    assert maker.has_made.acquire(timeout=10)
    joined = batches.take(RECIPE, (*THREE, *TWO))
    assert [part.tolist() for part in joined.batch] == [[2, 1], [[2, 20], [1, 10]]]
    assert joined.loss_units == (22, 11)
    assert maker.made == [(RECIPE, *ONE), (RECIPE, *THREE), (RECIPE, *TWO)]


def test_a_trainer_has_the_batch_of_the_unit_that_is_coming_made() -> None:
    loaded: list[int] = []
    is_loaded = threading.Event()

    class Told:
        def __getitem__(self, shard: int, /) -> Any:
            loaded.append(shard)
            if shard == 1:
                is_loaded.set()
            return some_shards()[shard]

    trainer, plain = Trainer(Replica(small_recipe()), RUN, Told()), Trainer(Replica(small_recipe()), RUN, some_shards())
    first, second = Unit(0, 0, 0, 4), Unit(0, 1, 120, 126)
    trainer.coming = (second,)
    assert trainer.compute(first) == plain.compute(first)
    assert is_loaded.wait(10)
    trainer.coming = ()
    assert trainer.compute(second) == plain.compute(second)
    assert loaded == [0, 1]
