"""Preparing a text: from real English to a single letter."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text import prepare as module
from peer_agent.publishing.text.prepare import PreparedText, prepare
from peer_agent.publishing.text.tokenizer import train_tokenizer
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import load_shard
from tests.publishing.texts import docstrings, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="module")
def prepared(folder: Path) -> PreparedText:
    return prepare(written(folder, docstrings()), folder, TextPreparation(1024))


def test_counts_are_those_of_the_files(prepared: PreparedText, folder: Path) -> None:
    text = docstrings()
    assert prepared.characters == len(text)
    files = {path.stem: len(load_shard(path)) for path in (folder / "shards").iterdir()}
    assert files == {shard.digest: shard.size for shard in prepared.shards}
    assert prepared.size == sum(files.values())
    assert prepared.vocab == 1024


def test_a_part_is_held_out(prepared: PreparedText, folder: Path) -> None:
    assert prepared.heldout is not None
    assert len(load_shard(folder / "heldout.safetensors")) == prepared.heldout.size >= 2000
    assert 0.015 < prepared.heldout.size / (prepared.size + prepared.heldout.size) < 0.04


def test_the_whole_text_is_there_once(prepared: PreparedText, folder: Path) -> None:
    """Held-out part and shards together decode to the documents of the text, shuffled."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    paths = [folder / "heldout.safetensors", *(folder / "shards" / f"{s.digest}.safetensors" for s in prepared.shards)]
    tokens = np.concatenate([load_shard(path) for path in paths]).tolist()
    documents = tokenizer.decode(tokens, skip_special_tokens=False).split("<|endoftext|>")
    text = docstrings()
    assert sum(map(len, documents)) == len(text)
    assert all(document in text for document in documents)
    assert not text.startswith(documents[0])


def test_further_texts_are_sources_of_their_own_under_one_tokenizer(tmp_path: Path) -> None:
    """Of apples and of berries: no shard has both, the tokenizer knows both, and something of both is held out."""
    for name in ("apples", "berries"):
        (tmp_path / name).mkdir()
    texts = [written(tmp_path / name, f"{name} " * 60_000) for name in ("apples", "berries")]
    made = prepare(texts[0], tmp_path / "out", TextPreparation(300), texts[1:])
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    assert {shard.source for shard in made.shards} == {0, 1}
    for shard in made.shards:
        tokens = load_shard(tmp_path / "out" / "shards" / f"{shard.digest}.safetensors").tolist()
        words = set(tokenizer.decode(tokens).split())
        assert ("apples" in words, "berries" in words) == (shard.source == 0, shard.source == 1)
    assert made.size == sum(shard.size for shard in made.shards)
    assert made.characters == 60_000 * (len("apples ") + len("berries "))
    held = tokenizer.decode(load_shard(tmp_path / "out" / "heldout.safetensors").tolist())
    assert "apples apples" in held
    assert "berries berries" in held
    assert len(made.pieces) == 3
    assert {word for piece in made.pieces for word in piece.split()} >= {"apples", "berries"}
    assert made.ready.startswith("The dataset of 2 texts is ready: ")


def test_the_tokenizer_learns_from_as_much_of_each_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[str] = []

    def train(documents: Iterable[str], preparation: TextPreparation) -> Tokenizer:
        learned.extend(documents)
        return train_tokenizer(learned, preparation)

    monkeypatch.setattr(module, "TRAINED_ON", 200_000)
    monkeypatch.setattr(module, "train_tokenizer", train)
    for name in ("apples", "berries"):
        (tmp_path / name).mkdir()
    texts = [written(tmp_path / name, f"{name} " * 60_000) for name in ("apples", "berries")]
    prepare(texts[0], tmp_path / "out", TextPreparation(300), texts[1:])
    for name in ("apples", "berries"):
        assert 95_000 < sum(len(document) for document in learned if name in document) <= 100_000


def test_every_shard_is_a_fair_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that speaks first of apples and then of berries: every shard speaks of both."""
    monkeypatch.setattr(module, "shard_tokens", lambda _: 20_000)
    text = "\n\n".join(["apples " * 60] * 600 + ["berries " * 60] * 600)
    result = prepare(written(tmp_path, text), tmp_path, TextPreparation(300))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    assert len(result.shards) >= 3
    for shard in result.shards[:-1]:
        words = tokenizer.decode(load_shard(tmp_path / "shards" / f"{shard.digest}.safetensors").tolist())
        assert 0.3 < words.count("apples") / (words.count("apples") + words.count("berries")) < 0.7


def test_entropy_and_pieces_describe_the_text(prepared: PreparedText) -> None:
    assert prepared.unigram_entropy is not None
    assert 4 < prepared.unigram_entropy < np.log(1024)
    assert len(prepared.pieces) == 3
    assert all(100 < len(piece) <= 200 for piece in prepared.pieces)
    assert all(piece.split()[0] in docstrings() for piece in prepared.pieces)


def test_the_same_text_gives_the_same_shards(prepared: PreparedText, tmp_path: Path) -> None:
    assert prepare(written(tmp_path, docstrings()), tmp_path, TextPreparation(1024)) == prepared


@pytest.mark.parametrize("text", ["a", "\n", "語", "Two words.", "x" * 2000])
def test_a_tiny_text_is_enough(text: str, tmp_path: Path) -> None:
    result = prepare(written(tmp_path, text), tmp_path, TextPreparation(300))
    assert result.heldout is None
    assert [shard.size >= 2 for shard in result.shards] == [True]
    assert result.vocab >= 257
    assert not (tmp_path / "heldout.safetensors").exists()


@pytest.mark.parametrize(("content", "code"), [(b"", "E303"), (b"caf\xe9", "E302")])
def test_what_is_no_text_leaves_nothing_behind(content: bytes, code: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=code):
        prepare(written(tmp_path, content), tmp_path / "out", TextPreparation(300))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("vocab", [256, 65_537])
def test_a_vocabulary_out_of_bounds_has_a_number(vocab: int, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E301"):
        prepare(written(tmp_path, "text"), tmp_path, TextPreparation(vocab))


def test_a_place_that_cannot_be_written_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(Problem, match="E106"):
        prepare(written(tmp_path, "text"), tmp_path / "out", TextPreparation(300))
