"""The effect of fewer bits on a model's loss, in a short version of `python -m tests.benchmarks.training.codecs`."""

import pytest

from peer_agent.protocol.recipe import Codec
from tests.benchmarks.training.codecs import heldout_loss

STEPS = 30


@pytest.fixture(scope="module")
def in_halves() -> float:
    return heldout_loss("fp16", 1, STEPS)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_few_bits_both_ways_cost_under_one_percent_of_the_loss(codec: Codec, in_halves: float) -> None:
    assert heldout_loss(codec, 1, STEPS) <= 1.01 * in_halves
