"""A chunk's average comes from an aggregate: the weighted mean, or another one that keeps all slots."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer_agent.averaging.aggregates import AGGREGATES, Mean, Room, centered_clip
from peer_agent.averaging.codecs import Floats, decode
from peer_agent.averaging.reducer import Reduction
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.recipe import AveragingRule
from peer_agent.protocol.relay.opened import OpenPlan
from tests.averaging.byzfl_values import GOLDEN, slots_of
from tests.averaging.rounds import GRID, contributor, plan_of

SLOTS = st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 1.0)), min_size=1, max_size=8)


def room(elements: int) -> Floats:
    return np.full(elements, np.nan, np.float32)


@given(SLOTS, st.integers(0, 2**32 - 1))
def test_mean_is_weighted_by_tokens_and_scales_the_numerator(slots: list[tuple[int, float]], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(len(slots), 50)).astype(np.float32)
    mean = Mean(room)
    for slot, (tokens, scale) in enumerate(slots):
        mean.add(slot, values[slot].copy(), tokens, scale)
    assert mean.tokens == sum(tokens for tokens, _ in slots)
    weights = np.array([tokens * scale for tokens, scale in slots])
    wanted = (weights[:, None] * values.astype(np.float64)).sum(axis=0) / mean.tokens
    assert np.allclose(mean.close(), wanted, atol=1e-5)


def added(rule: AveragingRule, values: NDArray[np.float64], tokens: Sequence[int] = ()) -> Floats:
    """Return a rule's average of these slots [slots, n]."""
    aggregate = AGGREGATES[rule](room)
    for slot, row in enumerate(values.astype(np.float32)):
        aggregate.add(slot, row, tokens[slot] if tokens else 10, 1.0)
    return aggregate.close()


@pytest.mark.parametrize("case", GOLDEN["geometric median"], ids=str)
def test_geometric_median_is_that_of_byzfl(case: int) -> None:
    """The values are from byzfl 0.0.11 with 500 iterations, for eight random slots, some far away."""
    values = slots_of(case)
    wanted = np.array(GOLDEN["geometric median"][case])
    found = added("geometric median", values)
    assert np.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("case", GOLDEN["centered clip"], ids=str)
def test_centered_clip_is_that_of_byzfl(case: int) -> None:
    values = slots_of(case)
    weights = np.full(len(values), 1 / len(values))
    found = centered_clip(values @ values.T, weights, radius=2.0) @ values
    assert np.allclose(found, GOLDEN["centered clip"][case], atol=1e-9)


@pytest.mark.parametrize("rule", ["geometric median", "centered clip"])
@pytest.mark.parametrize("attack", [-10.0, 100.0, 1e6])
def test_robust_rules_stay_near_the_honest_slots(rule: AveragingRule, attack: float) -> None:
    values = np.random.default_rng(3).normal(1.0, 0.1, (8, 40))
    values[:3] *= attack
    honest = values[3:].mean(axis=0)
    assert np.linalg.norm(added("mean", values) - honest) > np.linalg.norm(honest)
    assert np.linalg.norm(added(rule, values) - honest) < 0.6 * np.linalg.norm(honest)


@pytest.mark.parametrize("rule", ["geometric median", "centered clip"])
def test_robust_rules_weigh_by_tokens_and_scale(rule: AveragingRule) -> None:
    values = np.stack([np.ones(20), -np.ones(20)])
    assert added(rule, values, [30, 10]).mean() > 0.4
    assert added(rule, values, [10, 30]).mean() < -0.4
    aggregate = AGGREGATES[rule](room)
    aggregate.add(0, np.full(20, 8.0, np.float32), 10, 0.25)
    assert aggregate.tokens == 10
    assert np.allclose(aggregate.close(), 2.0, rtol=0.2)


@pytest.mark.parametrize("rule", ["geometric median", "centered clip"])
def test_robust_rules_of_equal_or_empty_slots_are_finite(rule: AveragingRule) -> None:
    assert np.allclose(added(rule, np.ones((4, 9))), 1.0, rtol=0.01)
    assert np.allclose(added(rule, np.zeros((4, 9))), 0.0)


class MedianOfSlots:
    """An aggregate that keeps every slot's values until it is closed."""

    def __init__(self, room: Room) -> None:
        del room
        self.tokens, self.kept = 0, dict[int, Floats]()

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        self.kept[slot] = values * np.float32(scale)
        self.tokens += tokens

    def close(self) -> Floats:
        return np.median(np.stack(list(self.kept.values())), axis=0).astype(np.float32)


def test_an_aggregate_may_keep_the_values_of_all_slots() -> None:
    sendings = [contributor(number, 100).offer("fp32") for number in range(3)]
    plan = plan_of(sendings)
    reduction = Reduction(OpenPlan(plan, plan.slots), aggregate=MedianOfSlots)
    for slot, sending in enumerate(sendings):
        assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
    for chunk in GRID:
        for slot, sending in enumerate(sendings):
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
        slots = [decode("fp32", sending.payloads[chunk], GRID.length(chunk)) for sending in sendings]
        average = decode("fp32", bytes(reduction.close(chunk, 300)), GRID.length(chunk))
        assert np.array_equal(average, np.median(slots, axis=0).astype(np.float32))


def test_an_average_of_other_slots_than_the_record_names_is_impossible() -> None:
    sendings = [contributor(number, 100).offer("fp32") for number in range(2)]
    plan = plan_of(sendings)
    reduction = Reduction(OpenPlan(plan, plan.slots))
    assert reduction.leaves(0, pack_leaves(sendings[0].leaves)) is None
    assert reduction.add(0, 0, sendings[0].payloads[0]) is None
    with pytest.raises(AssertionError, match="exactly the slots"):
        reduction.close(0, 200)
