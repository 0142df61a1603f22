"""The tokenizer: every text round-trips, and transformers loads it without a network."""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peer_agent.publishing.tokenizer import (
    END_OF_TEXT,
    END_OF_TEXT_ID,
    Encoded,
    encode_documents,
    entropy_of,
    in_shards,
    save_tokenizer,
    sentences_of,
    shard_tokens,
    train_tokenizer,
    write_heldout,
    write_shard,
)
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import Sentences, copy_tokenizer, load_sentences, load_shard

TEXTS = ["Many hands make light work.\n\n", "  two  spaces\tand a tab", "ünïcödé 🤝 語", "a"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS * 10, TextPreparation(300))


def test_every_text_comes_back(tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, "unseen: Ω ≠ ß\r\n\0"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_documents_end_with_the_end_of_text(tokenizer: Tokenizer) -> None:
    encoded = list(encode_documents(tokenizer, TEXTS * 100))
    assert len(encoded) == 400
    assert all(document.tokens[-1] == END_OF_TEXT_ID == tokenizer.token_to_id(END_OF_TEXT) for document in encoded)
    assert all(len(document.tokens) >= 2 for document in encoded)


def test_a_short_text_gives_a_small_vocabulary() -> None:
    assert train_tokenizer(["a"], TextPreparation(1000)).get_vocab_size() == 257


def test_transformers_loads_it_offline(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path / "one")
    (tmp_path / "other").mkdir()
    copy_tokenizer(tmp_path / "one", tmp_path / "other", context=64)
    loaded: Any = AutoTokenizer.from_pretrained(tmp_path / "other", local_files_only=True)
    assert loaded.model_max_length == 64
    assert (loaded.eos_token, loaded.eos_token_id) == (END_OF_TEXT, END_OF_TEXT_ID)
    for text in TEXTS:
        assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
        assert loaded.decode(tokenizer.encode(text).ids) == text


SENTENCES = "A first one. A second? Yes!  And\na line.\n\nবাংলা বাক্য। আর একটি।"
BENGALI = TextPreparation(120, "unigram", "bengali", lowercase=True, sentences=True)


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return train_tokenizer([SENTENCES, "খরচ: ৫|", *TEXTS] * 20, BENGALI)


def test_sentences_end_behind_their_marks_in_any_script() -> None:
    found = sentences_of(SENTENCES)
    words = ["A first one.", "A second?", "Yes!", "And", "a line.", "বাংলা বাক্য।", "আর একটি।"]
    assert [sentence.strip() for sentence in found] == words
    assert "".join(found) == SENTENCES
    assert sentences_of("3.14 is not two") == ["3.14 is not two"]


def test_a_document_is_the_tokens_of_its_sentences(unigram: Tokenizer) -> None:
    (encoded,) = encode_documents(unigram, [SENTENCES], sentences=True)
    stops = [*encoded.starts[1:], len(encoded.tokens)]
    parts = [encoded.tokens[start:stop] for start, stop in zip(encoded.starts, stops, strict=True)]
    alone = [unigram.encode(sentence, add_special_tokens=False).ids for sentence in sentences_of(SENTENCES)]
    assert parts == alone


def test_what_a_language_writes_in_two_ways_is_one(unigram: Tokenizer) -> None:
    def normalized(text: str) -> str:
        return str(unigram.normalizer.normalize_str(text))

    assert normalized("ক\u09f7 খ|") == "ক\u0964 খ\u0964"
    assert normalized("দুঃখ অতএব: A:") == "দুঃখ অতএব\u0983 a:"
    assert normalized("a\u00a0 \t b ﬁ") == "a b fi"


def test_a_tokenizer_for_sentences_has_its_special_tokens_first(unigram: Tokenizer, tmp_path: Path) -> None:
    assert [unigram.id_to_token(token) for token in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    save_tokenizer(unigram, tmp_path, sentences=True)
    loaded: Any = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert (loaded.mask_token_id, loaded.pad_token_id, loaded.unk_token_id) == (4, 0, 1)
    ids = loaded("a first one.", "yes!")["input_ids"]
    assert (ids[0], ids[-1], ids.count(3)) == (2, 3, 2)
    assert unigram.encode("☃").ids[1:-1] != []


def test_bytes_may_be_cut_into_sentences_too() -> None:
    tokenizer = train_tokenizer([SENTENCES] * 20, TextPreparation(400, "bpe", sentences=True))
    assert [tokenizer.id_to_token(token) for token in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    (encoded,) = encode_documents(tokenizer, [SENTENCES], sentences=True)
    assert tokenizer.decode(encoded.tokens) == SENTENCES


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
    """A peer gets the list of all the shards in one message, so there must not be many of them."""
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
