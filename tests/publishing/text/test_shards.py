"""Token files."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from peer_agent.publishing.text import shards as module
from peer_agent.publishing.text.shards import entropy_of, in_shards, write_shard
from peer_agent.recipes.text.tokens import load_shard


def test_documents_stay_whole_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_TOKENS", 10)
    documents = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14]]
    assert [shard.tolist() for shard in in_shards(documents)] == [list(range(1, 13)), [13, 14]]


def test_a_shard_is_named_by_its_content(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    written = write_shard(tokens, tmp_path)
    path = tmp_path / f"{written.digest}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == written.digest
    assert written.tokens == 1000
    assert np.array_equal(load_shard(path), tokens)


def test_entropy_of_what_is_known() -> None:
    assert entropy_of(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4))
    assert entropy_of(np.array([7, 0])) == 0.0
