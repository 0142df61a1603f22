"""From a leased unit to its samples."""

import numpy as np
import pytest

from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.sampling import order_of
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.text.tokens import IGNORED
from peer_agent.training.data import batch_of, samples_of
from tests.training.commits import RUN

TOKENS = np.arange(1, 36, dtype=np.uint16)  # three samples of ten and a tail of five
RECIPE = CausalLM(model=Model(context=10))


def test_a_unit_is_its_place_in_the_shards_order() -> None:
    ids, labels = batch_of(RECIPE, Unit(2, 5, 1, 3), run=RUN, shard=TOKENS)
    order = order_of(RUN, 2, 5, 4)[1:3]
    assert ids.dtype == labels.dtype == np.int64
    assert ids[:, 0].tolist() == [1 + 10 * sample for sample in order]


def test_units_cover_a_shard_once() -> None:
    seen: list[int] = []
    for start in range(0, 4, 2):
        _, labels = batch_of(RECIPE, Unit(0, 0, start, start + 2), run=RUN, shard=TOKENS)
        seen += labels[labels != IGNORED].tolist()
    assert sorted(seen) == TOKENS.tolist()


@pytest.mark.parametrize("unit", [Unit(0, 0, 3, 5), Unit(0, 0, 2, 2), Unit(0, 0, -1, 2)])
def test_a_unit_beyond_the_shard_is_refused(unit: Unit) -> None:
    with pytest.raises(ValueError, match="of a shard of 4"):
        samples_of(unit, run=RUN, of=4)
    with pytest.raises(ValueError, match="of a shard of 4"):
        batch_of(RECIPE, unit, run=RUN, shard=TOKENS)
