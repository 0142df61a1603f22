"""Units: batches prepared ahead, samples, and the number of units per pass."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sampling import order_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.text.tokens import IGNORED
from peer_agent.recipes.training import Batch
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import (
    LONGEST_S,
    MOST_UNITS,
    TRIES,
    Batches,
    Computed,
    DeviceBatch,
    NonFinite,
    batch_of,
    samples_of,
)
from tests.training.commits import RUN, small_recipe, some_shards, take_units
from tests.training.test_short_memory import CASES, on

RECIPE, OTHER = CausalLM(), CausalLM(micro_batch=2)
UNITS = [Unit(0, shard, 0, 4) for shard in range(3)]
ONE, TWO, THREE = ((unit,) for unit in UNITS)


def weight(batch: Batch) -> int:
    return int(batch[1].sum())


class Maker:
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
    """Return the shard that each row comes from."""
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


TOKENS = np.arange(1, 36, dtype=np.uint16)  # three samples of ten tokens, and five tokens left over
SHORT = CausalLM(model=Model(context=10))


def test_a_unit_is_its_place_in_the_shards_order() -> None:
    ids, labels = batch_of(SHORT, Unit(2, 5, 1, 3), run=RUN, shard=TOKENS)
    order = order_of(RUN, 2, 5, 4)[1:3]
    assert ids.dtype == labels.dtype == np.int64
    assert ids[:, 0].tolist() == [1 + 10 * sample for sample in order]


def test_units_cover_a_shard_once() -> None:
    seen: list[int] = []
    for start in range(0, 4, 2):
        _, labels = batch_of(SHORT, Unit(0, 0, start, start + 2), run=RUN, shard=TOKENS)
        seen += labels[labels != IGNORED].tolist()
    assert sorted(seen) == TOKENS.tolist()


@pytest.mark.parametrize("unit", [Unit(0, 0, 3, 5), Unit(0, 0, 2, 2), Unit(0, 0, -1, 2)])
def test_a_unit_beyond_the_shard_is_refused(unit: Unit) -> None:
    with pytest.raises(ValueError, match="of a shard of 4"):
        samples_of(unit, run=RUN, of=4)
    with pytest.raises(ValueError, match="of a shard of 4"):
        batch_of(SHORT, unit, run=RUN, shard=TOKENS)


SAMPLES = 4  # samples in a unit
MIXED = (Unit(0, 0, 0, 4), Unit(1, 1, 120, 126), Unit(0, 0, 8, 12))  # one of these units has the short last sample


def tried(batch: DeviceBatch, *rates: float, passes: int = TRIES) -> int:
    for rate in rates:
        for _ in range(passes):
            batch.took(batch.units, SAMPLES * batch.units, SAMPLES * batch.units / rate)
    return batch.units


def test_it_begins_with_one_unit_and_doubles_while_that_pays() -> None:
    batch = DeviceBatch(64)
    assert batch.units == 1
    assert tried(batch, 1000.0) == 2
    assert tried(batch, 1900.0) == 4
    assert tried(batch, 2100.0) == 8, "a tenth more"
    assert tried(batch, 2300.0) == 4, "less than a tenth more"
    assert tried(batch, 9000.0, 9000.0) == 4, "and it stays so"


def test_it_asks_for_no_more_than_the_most() -> None:
    assert tried(DeviceBatch(), 1.0, 1000.0) == 1
    batch = DeviceBatch(4)
    assert tried(batch, 100.0, 200.0) == 4
    assert tried(batch, 400.0, 800.0) == 4
    assert tried(DeviceBatch(5), 100.0, 200.0, 400.0) == 4


def test_the_fastest_of_a_few_passes_counts() -> None:
    """The first pass of each size is slow, and so is a pass that waits for data."""
    batch = DeviceBatch(64)
    for seconds in (9.0, 0.004, 5.0):
        assert batch.units == 1
        batch.took(1, SAMPLES, seconds)
    assert batch.units == 2
    for seconds in (9.0, 0.007, 0.008):
        batch.took(2, 2 * SAMPLES, seconds)
    assert batch.units == 4


def test_smaller_pass_teaches_nothing_about_the_size_being_tried() -> None:
    batch = DeviceBatch(64)
    tried(batch, 1000.0, 2000.0)
    for _ in range(TRIES):
        batch.took(3, 3 * SAMPLES, 100.0)
    assert batch.units == 4


@pytest.mark.parametrize(("seconds", "units"), [(0.45 * LONGEST_S, 2), (0.6 * LONGEST_S, 1)])
def test_a_pass_does_not_get_so_long_that_rounds_wait_for_it(seconds: float, units: int) -> None:
    assert tried(DeviceBatch(64), SAMPLES / seconds) == units


def test_it_never_asks_again_for_more_than_memory_had_room_for() -> None:
    batch = DeviceBatch(64)
    assert tried(batch, 1000.0, 2000.0, 4000.0) == 8
    batch.fits(4)
    assert batch.units == 4
    assert tried(batch, 9000.0, 9000.0) == 4
    batch.fits(0)
    assert batch.units == 1, "what is left of a unit is computed in parts"
    early = DeviceBatch(64)
    early.fits(2)
    assert tried(early, 1000.0) == 2
    assert tried(early, 2000.0, 4000.0) == 2


def test_units_of_a_non_finite_pass_are_computed_alone_once() -> None:
    batch = DeviceBatch(64)
    tried(batch, 1000.0, 2000.0)
    batch.was_not_finite(3)
    asked = []
    for is_finite in (True, False, True, True):
        asked.append(batch.units)
        if is_finite:
            batch.took(1, SAMPLES, 1e-9)
        else:
            batch.was_not_finite(1)
    assert asked == [1, 1, 1, 4]
    assert tried(batch, 4000.0) == 8, "what single units took meanwhile tells nothing"


# Their work


def in_one_pass(trainer: Trainer, *units: Unit) -> Computed:
    done = trainer.compute(*units)
    assert isinstance(done, Computed)
    trainer.keep(done)
    return done


@pytest.mark.parametrize("name", ["gpt2", "llama", "albert"])
def test_one_pass_is_the_same_work(name: str) -> None:
    """Random numbers are the same too: the mask depends only on the sample, whatever else is in the batch (rule 33)."""
    recipe, shard = CASES[name]
    units = (Unit(0, 0, 0, 4), Unit(1, 0, 30, 33), Unit(0, 0, 8, 12))
    trainers = [Trainer(Replica(recipe), RUN, [shard]) for _ in range(2)]
    each = [trainers[0].compute(unit) for unit in units]
    apart = take_units(trainers[0], units)
    done = in_one_pass(trainers[1], *units)
    together = trainers[1].take_sum()
    assert done.loss_tokens == tuple(found.loss_tokens[0] for found in each if isinstance(found, Computed))
    assert together.units == apart.units == tuple(DoneUnit(unit, 0) for unit in units)
    assert together.loss_tokens == apart.loss_tokens
    assert together.loss_sum == pytest.approx(apart.loss_sum, rel=1e-6)
    np.testing.assert_allclose(together.gradient_sum, apart.gradient_sum, rtol=1e-4, atol=1e-4)
    if isinstance(recipe, MaskedLM):
        assert len(set(done.loss_tokens)) > 1, "else it shows nothing"


def test_all_have_the_step_of_the_pass() -> None:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    trainer.replica.step = 5
    in_one_pass(trainer, *MIXED)
    assert trainer.units == tuple(DoneUnit(unit, 5) for unit in MIXED)


def test_non_finite_pass_blames_all_units_until_each_ran_alone() -> None:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    kind = trainer._kind

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(kind, name)

        def summed_loss(self, recipe: Any, model: Any, batch: Any, device: Any) -> torch.Tensor:
            loss: torch.Tensor = kind.summed_loss(recipe, model, batch, device)
            return loss * float("nan") if len(batch[0]) > 4 else loss

    trainer._kind = Broken()
    assert trainer.compute(*MIXED) == NonFinite(MIXED)
    assert not trainer.take_sum().gradient_sum.any()
    assert trainer.compute(MIXED[1]) == NonFinite(MIXED[1:2])
    in_one_pass(trainer, MIXED[0])
    assert trainer.units == (DoneUnit(MIXED[0], 0),)


def test_short_memory_splits_a_pass_even_below_one_unit() -> None:
    whole, trainer = take_units(Trainer(Replica(small_recipe()), RUN, some_shards()), MIXED), None
    for most, parts in ((7, [14, 7, 7]), (3, [14, 7, 3, 3, 3, 3, 2])):
        trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
        small = on(trainer, most)
        in_one_pass(trainer, *MIXED)
        assert small.asked == parts
        assert trainer.at_once == most
        taken = trainer.take_sum()
        assert (taken.units, taken.loss_tokens) == (whole.units, whole.loss_tokens)
        np.testing.assert_allclose(taken.gradient_sum, whole.gradient_sum, rtol=1e-4, atol=1e-4)


def test_pass_takes_one_unit_if_units_are_whole_or_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a unit's loss depends on the whole unit, more samples in the batch would change the loss."""
    most = {}
    for name, (recipe, shard) in CASES.items():
        trainer = Trainer(Replica(recipe), RUN, [shard])
        assert trainer.most_units == 1
        monkeypatch.setattr(trainer.replica, "device", torch.device("cuda"))
        most[name] = trainer.most_units
    assert most == {"gpt2": MOST_UNITS, "llama": MOST_UNITS, "albert": MOST_UNITS, "resnet": 1}
