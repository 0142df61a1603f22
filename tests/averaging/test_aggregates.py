"""A chunk's average comes from an aggregate: the weighted mean, or another one that keeps all slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.averaging.aggregates import Mean, Room
from peer_agent.averaging.codecs import Floats, decode
from peer_agent.averaging.reducer import Reduction
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.relay.opened import OpenPlan
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
