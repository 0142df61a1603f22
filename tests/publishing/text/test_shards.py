"""Token files."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from peer_agent.publishing.text.shards import entropy_of, in_shards, shard_tokens, write_heldout, write_shard
from peer_agent.publishing.text.tokenizer import Encoded
from peer_agent.recipes.text.tokens import Sentences, load_sentences, load_shard

NOWHERE = np.array([], np.uint32)


def test_documents_stay_whole_and_in_order() -> None:
    documents = [Encoded(tokens, []) for tokens in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14])]
    assert [shard.tokens.tolist() for shard in in_shards(documents, 10)] == [list(range(1, 13)), [13, 14]]


def test_a_shard_is_named_by_its_content(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    written = write_shard(Sentences(tokens, NOWHERE), tmp_path)
    path = tmp_path / f"{written.digest}.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == written.digest
    assert written.size == 1000
    assert np.array_equal(load_shard(path), tokens)


def test_where_sentences_begin_is_said_in_tokens_of_the_shard(tmp_path: Path) -> None:
    documents = [Encoded([1, 2, 3, 4], [0, 3]), Encoded([5, 6, 7, 8], [0, 2]), Encoded([9, 10], [0])]
    shards = list(in_shards(documents, 8))
    assert [shard.starts.tolist() for shard in shards] == [[0, 3, 4, 6], [0]]
    loaded = load_sentences(tmp_path / f"{write_shard(shards[0], tmp_path).digest}.safetensors")
    assert (loaded.tokens.tolist(), loaded.starts.tolist()) == ([1, 2, 3, 4, 5, 6, 7, 8], [0, 3, 4, 6])
    write_heldout(documents, tmp_path / "heldout.safetensors")
    held = load_sentences(tmp_path / "heldout.safetensors")
    assert (held.tokens.tolist(), held.starts.tolist()) == ([*range(1, 11)], [0, 3, 4, 6, 8])


@pytest.mark.parametrize(
    ("text_bytes", "size"),
    [(1, 1 << 17), (2 << 30, 1 << 17), (3 << 30, 1 << 18), (100 << 30, 1 << 23), (1 << 50, 1 << 23)],
)
def test_large_texts_have_larger_shards(text_bytes: int, size: int) -> None:
    """A peer is told of all of them in one message."""
    assert shard_tokens(text_bytes) == size


def test_tokens_of_many_kinds_take_more_room() -> None:
    (shard,) = in_shards([Encoded([5, 70_000], [])], 10)
    assert shard.tokens.dtype == np.uint32
    assert shard.tokens.tolist() == [5, 70_000]
    (shard,) = in_shards([Encoded([5, 65_535], [])], 10)
    assert shard.tokens.dtype == np.uint16


def test_entropy_of_what_is_known() -> None:
    assert entropy_of(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4))
    assert entropy_of(np.array([7, 0])) == 0.0
