"""The trainer sums gradients. The sum is taken as a whole, and computing leaves the replica unchanged."""

import math

import numpy as np
import pytest
import torch

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages import DoneUnit
from peer_agent.recipes.causal_lm import CausalLM
from peer_agent.recipes.text.tokens import IGNORED
from peer_agent.training.loop import Trainer, are_finite, memory_or_problem, pick_device
from peer_agent.training.replica import Replica
from peer_agent.training.units import Computed, NonFinite, batch_of
from tests.training.commits import RUN, Vector, small_recipe, some_shards, take_units

UNITS = (Unit(0, 0, 0, 4), Unit(0, 1, 120, 126))


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(Replica(small_recipe()), RUN, some_shards())


def plain_gradient(unit: Unit) -> tuple[Vector, float]:
    """Return a unit's gradient and loss, computed with transformers' own loss on a separate model."""
    replica = Replica(small_recipe())
    tokens = some_shards()[unit.shard]
    ids, labels = map(torch.from_numpy, batch_of(small_recipe(), unit, run=RUN, shard=tokens))
    loss = replica.model(input_ids=ids, labels=labels).loss * (labels[:, 1:] != IGNORED).sum()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in replica.model.parameters() if p.grad is not None])
    return flat.numpy(), float(loss.detach())


def kept(trainer: Trainer, unit: Unit) -> Computed:
    done = trainer.compute(unit)
    assert isinstance(done, Computed)
    trainer.keep(done)
    return done


def test_the_sum_is_the_gradient_of_the_summed_loss(trainer: Trainer) -> None:
    expected = [plain_gradient(unit) for unit in UNITS]
    taken = take_units(trainer, UNITS)
    np.testing.assert_allclose(taken.gradient_sum, expected[0][0] + expected[1][0], rtol=1e-4, atol=1e-4)
    assert taken.loss_sum == pytest.approx(expected[0][1] + expected[1][1], rel=1e-5)
    assert taken.units == (DoneUnit(UNITS[0], 0), DoneUnit(UNITS[1], 0))


@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 100])
def test_fewer_samples_at_a_time_are_the_same_work(trainer: Trainer, at_once: int) -> None:
    """The sums are equal except for the order in which the floats are added."""
    whole = take_units(trainer, UNITS)
    few = Trainer(Replica(small_recipe()), RUN, some_shards(), at_once=at_once)
    sizes: list[int] = []
    few.replica.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True
    )
    parts = take_units(few, UNITS)
    assert max(sizes) == min(at_once, 6)
    np.testing.assert_allclose(parts.gradient_sum, whole.gradient_sum, rtol=1e-4, atol=1e-4)
    assert parts.loss_sum == pytest.approx(whole.loss_sum, rel=1e-6)
    assert (parts.units, parts.loss_tokens) == (whole.units, whole.loss_tokens)


def test_loss_tokens_leave_out_padding_and_first_tokens(trainer: Trainer) -> None:
    whole = trainer.compute(UNITS[0])
    assert isinstance(whole, Computed)
    assert whole.loss_tokens == (4 * 23,)
    tail = 3011 % 24
    everything = [trainer.compute(Unit(0, 1, start, min(start + 42, 126))) for start in range(0, 126, 42)]
    assert sum(sum(done.loss_tokens) for done in everything if isinstance(done, Computed)) == 125 * 23 + tail - 1


def test_a_fresh_model_knows_nothing(trainer: Trainer) -> None:
    taken = take_units(trainer, UNITS)
    assert taken.loss_sum / taken.loss_tokens == pytest.approx(math.log(300), abs=0.2)


def test_the_replica_stays_as_it_is(trainer: Trainer) -> None:
    before = trainer.replica.digest()
    take_units(trainer, UNITS)
    trainer.evaluate(some_shards()[0][:200])
    assert trainer.replica.digest() == before


def test_taking_begins_anew(trainer: Trainer) -> None:
    first = take_units(trainer, UNITS)
    kept = first.gradient_sum.copy()
    again = take_units(trainer, UNITS)
    assert np.array_equal(first.gradient_sum, kept)
    assert np.array_equal(again.gradient_sum, kept)
    empty = trainer.take_sum()
    assert (empty.loss_tokens, empty.loss_sum, empty.units) == (0, 0.0, ())
    assert not empty.gradient_sum.any()


def test_discarding_leaves_nothing(trainer: Trainer) -> None:
    kept(trainer, UNITS[0])
    trainer.discard()
    assert trainer.take_sum().loss_tokens == 0


def test_a_unit_that_is_not_kept_stays_out(trainer: Trainer) -> None:
    kept(trainer, UNITS[0])
    clean = trainer.take_sum().gradient_sum
    kept(trainer, UNITS[0])
    trainer.compute(UNITS[1])
    assert trainer.units == (DoneUnit(UNITS[0], 0),)
    assert np.array_equal(trainer.take_sum().gradient_sum, clean)


def test_a_loop_of_ones_own_has_the_same_gradient(trainer: Trainer) -> None:
    expected = take_units(trainer, UNITS)
    for unit in UNITS:
        in_hand = trainer.begin(unit)
        loss = in_hand.summed_loss()
        loss.backward()  # type: ignore[no-untyped-call]
        done = in_hand.finish()
        assert isinstance(done, Computed)
        assert (done.loss_sum, done.loss_tokens) == (float(loss.detach()), (in_hand.loss_units,))
        trainer.keep(done)
    taken = trainer.take_sum()
    assert np.array_equal(taken.gradient_sum, expected.gradient_sum)
    assert (taken.loss_sum, taken.units) == (expected.loss_sum, expected.units)


def test_custom_loop_moves_nothing_that_is_frozen_or_not_finite(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = trainer.replica.layout.pieces[0].name
    monkeypatch.setattr(CausalLM, "frozen", lambda *_: frozenset({name}))
    piece = trainer.replica.layout.pieces[0]
    in_hand = trainer.begin(UNITS[0])
    in_hand.summed_loss().backward()  # type: ignore[no-untyped-call]
    assert piece.of(trainer._fresh).any()
    assert isinstance(in_hand.finish(), Computed)
    assert not piece.of(trainer._fresh).any()
    in_hand = trainer.begin(UNITS[0])
    in_hand.summed_loss().backward()  # type: ignore[no-untyped-call]
    trainer._fresh[-1] = math.inf
    assert in_hand.finish() == NonFinite((UNITS[0],))


def test_gradients_that_a_loop_puts_beside_the_buffer_count(trainer: Trainer) -> None:
    """`zero_grad()` detaches the gradients that are views into the buffer, and the backward pass creates new ones."""
    expected = take_units(trainer, UNITS).gradient_sum
    for unit in UNITS:
        in_hand = trainer.begin(unit)
        in_hand.model.zero_grad()
        in_hand.summed_loss().backward()  # type: ignore[no-untyped-call]
        done = in_hand.finish()
        assert isinstance(done, Computed)
        trainer.keep(done)
    assert np.array_equal(trainer.take_sum().gradient_sum, expected)
    assert np.array_equal(take_units(trainer, UNITS).gradient_sum, expected), "and the agent's loop is as it was"


def test_a_loss_without_a_gradient_counts_for_nothing(trainer: Trainer) -> None:
    in_hand = trainer.begin(UNITS[0])
    in_hand.summed_loss()
    with pytest.raises(ValueError, match="call backward"):
        in_hand.finish()


def test_a_unit_is_finished_after_it_was_computed(trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="its loss was computed"):
        trainer.begin(UNITS[0]).finish()


def test_what_an_abandoned_unit_left_is_gone(trainer: Trainer) -> None:
    clean = take_units(trainer, UNITS[:1]).gradient_sum
    trainer.begin(UNITS[1]).summed_loss().backward()  # type: ignore[no-untyped-call]
    in_hand = trainer.begin(UNITS[0])
    in_hand.summed_loss().backward()  # type: ignore[no-untyped-call]
    done = in_hand.finish()
    assert isinstance(done, Computed)
    trainer.keep(done)
    assert np.array_equal(trainer.take_sum().gradient_sum, clean)


def test_a_gradient_that_is_not_finite_stays_out(trainer: Trainer) -> None:
    clean = take_units(trainer, UNITS[:1])
    kept(trainer, UNITS[0])
    before = trainer.replica.parameters.clone()
    trainer.replica.parameters[:100] = math.nan
    assert trainer.compute(UNITS[1]) == NonFinite((UNITS[1],))
    trainer.replica.parameters.copy_(before)
    taken = trainer.take_sum()
    assert np.array_equal(taken.gradient_sum, clean.gradient_sum)
    assert taken.units == clean.units


def test_a_unit_carries_the_step_of_its_parameters(trainer: Trainer) -> None:
    trainer.replica.step = 5
    done = trainer.compute(UNITS[0])
    assert isinstance(done, Computed)
    assert done.base_step == 5


def test_held_out_loss_is_the_mean_over_tokens(trainer: Trainer) -> None:
    tokens = some_shards()[1]
    done = [kept(trainer, Unit(0, 1, start, min(start + 42, 126))) for start in range(0, 126, 42)]
    taken = trainer.take_sum()
    assert len(done) == 3
    assert trainer.evaluate(tokens) == pytest.approx(taken.loss_sum / taken.loss_tokens, rel=1e-6)
    with pytest.raises(ValueError, match="too little"):
        trainer.evaluate(tokens[:1])


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_has_a_number(error: Exception) -> None:
    with pytest.raises(Problem, match="E107"), memory_or_problem():
        raise error


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_or_problem():
        raise RuntimeError("shape mismatch")


@pytest.mark.parametrize(
    ("values", "are"),
    [
        ([1.0, -2.0], True),
        ([3e38, 3e38, 1.0], True),  # their sum is not finite
        ([-3e38, -3e38, 3e38], True),
        ([1.0, math.nan], False),
        ([math.inf, -math.inf], False),
        ([1.0, -math.inf], False),
        ([3e38, 3e38, math.inf], False),
    ],
)
def test_gradients_that_are_no_numbers_are_found(values: list[float], *, are: bool) -> None:
    assert are_finite(torch.tensor(values)) == are


def test_some_device_is_picked() -> None:
    assert pick_device().type in {"cpu", "cuda"}


def test_threads_are_as_asked() -> None:
    before = torch.get_num_threads()
    Trainer(Replica(small_recipe()), RUN, some_shards(), threads=2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
