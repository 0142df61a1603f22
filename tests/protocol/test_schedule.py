"""The scalars of an update: exact float32 values, computed in one place."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.recipe import Optimizer
from peer_agent.protocol.schedule import clip_factor, float32, learning_rate, scalars_of
from peer_agent.recipes.causal_lm import CausalLM

DECAYS = st.sampled_from(["cosine", "linear", "constant"])


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    optimizer = Optimizer(learning_rate=0.5, warmup_steps=4)
    assert [learning_rate(optimizer, step, 100) for step in (1, 2, 4)] == [0.125, 0.25, 0.5]


@pytest.mark.parametrize(("decay", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_decay_ends_at_its_floor(decay: str, middle: float) -> None:
    optimizer = Optimizer(learning_rate=1.0, warmup_steps=10, decay=decay, final_ratio=0.1)  # type: ignore[arg-type]
    assert learning_rate(optimizer, 60, 110) == pytest.approx(middle)
    end = 1.0 if decay == "constant" else 0.1
    assert learning_rate(optimizer, 110, 110) == pytest.approx(end)
    assert learning_rate(optimizer, 500, 110) == pytest.approx(end), "and stays there"


@given(st.integers(0, 50), st.integers(1, 200), DECAYS, st.floats(0, 1))
def test_the_rate_rises_then_never_rises_again(warmup: int, target: int, decay: str, final: float) -> None:
    optimizer = Optimizer(learning_rate=0.01, warmup_steps=warmup, decay=decay, final_ratio=final)  # type: ignore[arg-type]
    rates = [learning_rate(optimizer, step, max(target, warmup)) for step in range(1, max(target, warmup) + 1)]
    assert all(0 <= rate <= 0.01 * (1 + 1e-12) for rate in rates)
    after = rates[max(warmup - 1, 0) :]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(after))


@given(st.floats(0, 1e6), st.floats(0, 1e30))
def test_clipping_reduces_only_large_norms_to_the_bound(bound: float, squares: float) -> None:
    factor = clip_factor(bound, squares)
    assert 0 < factor <= 1 or (factor == 0 and bound < 1e-300)
    if bound == 0 or math.sqrt(squares) <= bound:
        assert factor == 1.0
    else:
        assert factor * math.sqrt(squares) == pytest.approx(bound)


def test_every_scalar_is_an_exact_float32() -> None:
    scalars = scalars_of(CausalLM(), step=7, sum_squares=12.3, tokens=997)
    for value in (getattr(scalars, name) for name in scalars.__struct_fields__):
        assert float(np.float32(value)) == value
    assert scalars.inverse_tokens == float32(1 / 997)
    assert scalars.inverse_bias_1 == float32(1 / (1 - 0.9**7))
    assert scalars.clip == float32(1 / math.sqrt(12.3))


def test_without_momentum_there_is_no_bias() -> None:
    recipe = CausalLM(optimizer=Optimizer(beta1=0.0, beta2=0.0))
    scalars = scalars_of(recipe, step=1, sum_squares=0.0, tokens=1)
    assert (scalars.inverse_bias_1, scalars.inverse_bias_2, scalars.clip) == (1.0, 1.0, 1.0)
