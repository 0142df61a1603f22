"""Shards of tokens, and rows of samples."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.text.recipe import samples_in, shard_bytes
from peer_agent.recipes.text.tokens import IGNORED, load_shard, rows_of


@pytest.mark.parametrize(
    ("tokens", "samples"), [(0, 0), (1, 0), (2, 1), (64, 1), (65, 1), (66, 2), (128, 2), (1000, 16)]
)
def test_a_tail_needs_two_tokens(tokens: int, samples: int) -> None:
    assert samples_in(tokens, 64) == samples


def test_a_shard_has_two_bytes_a_token_and_a_header() -> None:
    assert shard_bytes(1000) == 2000 + 64 * 1024
    assert shard_bytes(1000, sentences=True) == 6000 + 64 * 1024


TOKENS = np.arange(1, 36, dtype=np.uint16)  # three samples of ten tokens, and five tokens left over


def test_the_tail_is_padded_and_without_labels_there() -> None:
    ids, labels = rows_of(np.array([3]), tokens=TOKENS, context=10)
    assert ids[0].tolist() == [31, 32, 33, 34, 35, 0, 0, 0, 0, 0]
    assert labels[0].tolist() == [31, 32, 33, 34, 35] + [IGNORED] * 5


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
