"""From a leased unit to its batch."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.sampling import order_of, samples_in
from peer_agent.training.data import IGNORED, batch_of, load_shard, loss_tokens_in, rows_of
from tests.training.commits import RUN

TOKENS = np.arange(1, 36, dtype=np.uint16)  # three samples of ten and a tail of five


def test_a_unit_is_its_place_in_the_shards_order() -> None:
    ids, labels = batch_of(Unit(2, 5, 1, 3), run=RUN, tokens=TOKENS, context=10)
    order = order_of(RUN, 2, 5, 4)[1:3]
    assert ids.dtype == labels.dtype == np.int64
    assert ids[:, 0].tolist() == [1 + 10 * sample for sample in order]


def test_units_cover_a_shard_once() -> None:
    seen: list[int] = []
    for start in range(0, 4, 2):
        _, labels = batch_of(Unit(0, 0, start, start + 2), run=RUN, tokens=TOKENS, context=10)
        seen += labels[labels != IGNORED].tolist()
    assert sorted(seen) == TOKENS.tolist()


def test_the_tail_is_padded_and_without_loss_there() -> None:
    ids, labels = rows_of(np.array([3]), tokens=TOKENS, context=10)
    assert ids[0].tolist() == [31, 32, 33, 34, 35, 0, 0, 0, 0, 0]
    assert labels[0].tolist() == [31, 32, 33, 34, 35] + [IGNORED] * 5
    assert loss_tokens_in(labels) == 4


def test_whole_samples_lose_their_first_token_only() -> None:
    _, labels = rows_of(np.array([0, 2]), tokens=TOKENS, context=10)
    assert loss_tokens_in(labels) == 18


@pytest.mark.parametrize("unit", [Unit(0, 0, 3, 5), Unit(0, 0, 2, 2), Unit(0, 0, -1, 2)])
def test_a_unit_beyond_the_shard_is_refused(unit: Unit) -> None:
    assert samples_in(len(TOKENS), 10) == 4
    with pytest.raises(ValueError, match="of a shard of 4"):
        batch_of(unit, run=RUN, tokens=TOKENS, context=10)


def test_a_shard_file_gives_its_tokens(tmp_path: Path) -> None:
    save_file({"tokens": TOKENS}, tmp_path / "shard.safetensors")
    assert np.array_equal(load_shard(tmp_path / "shard.safetensors"), TOKENS)


def test_a_damaged_shard_has_a_number(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(Problem, match="E111"):
        load_shard(path)
    save_file({"tokens": TOKENS.astype(np.int32)}, path)
    with pytest.raises(Problem, match="E111"):
        load_shard(path)
