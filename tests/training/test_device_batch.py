"""How many units go into one pass: as many as pay. It is the same work as one after another."""

from typing import Any

import numpy as np
import pytest
import torch

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.training.computed import Computed, NonFinite
from peer_agent.training.device_batch import LONGEST_S, MOST_UNITS, TRIES, DeviceBatch
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.training.commits import RUN, small_recipe, some_shards, take_units
from tests.training.test_short_memory import CASES, on

SAMPLES = 4  # of a unit
UNITS = (Unit(0, 0, 0, 4), Unit(1, 1, 120, 126), Unit(0, 0, 8, 12))  # one of them with the short last sample


def tried(batch: DeviceBatch, *rates: float, passes: int = TRIES) -> int:
    """After passes with the number that it asks for, of such speeds in turn; the number after them."""
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
    """The first of a size is slow, as is one whose data have to be fetched."""
    batch = DeviceBatch(64)
    for seconds in (9.0, 0.004, 5.0):
        assert batch.units == 1
        batch.took(1, SAMPLES, seconds)
    assert batch.units == 2
    for seconds in (9.0, 0.007, 0.008):
        batch.took(2, 2 * SAMPLES, seconds)
    assert batch.units == 4


def test_a_pass_of_fewer_units_tells_nothing_of_the_number_that_is_tried() -> None:
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


def test_units_of_a_pass_that_is_not_finite_are_computed_alone_once() -> None:
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
    """Chance too: which tokens are masked is keyed by the sample, whatever else is in the batch (rule 33)."""
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
    in_one_pass(trainer, *UNITS)
    assert trainer.units == tuple(DoneUnit(unit, 5) for unit in UNITS)


def test_what_is_not_finite_is_of_all_until_each_was_computed_alone() -> None:
    trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
    kind = trainer._kind

    class Broken:
        """A text whose second unit has no loss."""

        def __getattr__(self, name: str) -> Any:
            return getattr(kind, name)

        def summed_loss(self, recipe: Any, model: Any, batch: Any, device: Any) -> torch.Tensor:
            loss: torch.Tensor = kind.summed_loss(recipe, model, batch, device)
            return loss * float("nan") if len(batch[0]) > 4 else loss

    trainer._kind = Broken()
    assert trainer.compute(*UNITS) == NonFinite(UNITS)
    assert not trainer.take_sum().gradient_sum.any()
    assert trainer.compute(UNITS[1]) == NonFinite(UNITS[1:2])
    in_one_pass(trainer, UNITS[0])
    assert trainer.units == (DoneUnit(UNITS[0], 0),)


def test_where_memory_is_short_a_pass_is_computed_in_parts_down_to_less_than_a_unit() -> None:
    whole, trainer = take_units(Trainer(Replica(small_recipe()), RUN, some_shards()), UNITS), None
    for most, parts in ((7, [14, 7, 7]), (3, [14, 7, 3, 3, 3, 3, 2])):
        trainer = Trainer(Replica(small_recipe()), RUN, some_shards())
        small = on(trainer, most)
        in_one_pass(trainer, *UNITS)
        assert small.asked == parts
        assert trainer.at_once == most
        taken = trainer.take_sum()
        assert (taken.units, taken.loss_tokens) == (whole.units, whole.loss_tokens)
        np.testing.assert_allclose(taken.gradient_sum, whole.gradient_sum, rtol=1e-4, atol=1e-4)


def test_one_unit_at_a_time_where_a_unit_is_whole_and_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a whole unit have a part in each other's loss: another batch would be another loss."""
    most = {}
    for name, (recipe, shard) in CASES.items():
        trainer = Trainer(Replica(recipe), RUN, [shard])
        assert trainer.most_units == 1
        monkeypatch.setattr(trainer.replica, "device", torch.device("cuda"))
        most[name] = trainer.most_units
    assert most == {"gpt2": MOST_UNITS, "llama": MOST_UNITS, "albert": MOST_UNITS, "resnet": 1}
