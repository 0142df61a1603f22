"""The tokenizer: every text comes back, and transformers loads it without a network."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peer_agent.publishing.text.tokenizer import (
    END_OF_TEXT,
    END_OF_TEXT_ID,
    encode_documents,
    save_tokenizer,
    train_tokenizer,
)
from peer_agent.recipes.text.tokenizer_files import copy_tokenizer

TEXTS = ["Many hands make light work.\n\n", "  two  spaces\tand a tab", "ünïcödé 🤝 語", "a"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS * 10, vocab=300)


def test_every_text_comes_back(tokenizer: Tokenizer) -> None:
    for text in [*TEXTS, "unseen: Ω ≠ ß\r\n\0"]:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_documents_end_with_the_end_of_text(tokenizer: Tokenizer) -> None:
    encoded = list(encode_documents(tokenizer, TEXTS * 100))
    assert len(encoded) == 400
    assert all(tokens[-1] == END_OF_TEXT_ID == tokenizer.token_to_id(END_OF_TEXT) for tokens in encoded)
    assert all(len(tokens) >= 2 for tokens in encoded)


def test_a_short_text_gives_a_small_vocabulary() -> None:
    assert train_tokenizer(["a"], vocab=1000).get_vocab_size() == 257


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
