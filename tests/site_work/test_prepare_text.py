"""Preparing a text, be it real English or a single letter."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.tokenizer import train_tokenizer
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.causal_lm.training import build_model, save_model
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import load_sentences, load_shard
from peer_agent.site_work import prepare_text as module
from peer_agent.site_work.intake.texts import Source, open_texts
from peer_agent.site_work.prepare_text import PreparedText, Texts, cut, prepare, take_tokenizer
from tests.publishing.texts import docstrings, written
from tests.site_work.intake.made import codes_of, json_lines, passage, passages, put, table, zipped


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
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    paths = [folder / "heldout.safetensors", *(folder / "shards" / f"{s.digest}.safetensors" for s in prepared.shards)]
    tokens = np.concatenate([load_shard(path) for path in paths]).tolist()
    documents = tokenizer.decode(tokens, skip_special_tokens=False).split("<|endoftext|>")
    text = docstrings()
    assert sum(map(len, documents)) == len(text)
    assert all(document in text for document in documents)
    assert not text.startswith(documents[0])


def fruit(name: str) -> str:
    """Return a text with the name before every word, which does not repeat itself."""
    return "\n\n".join(" ".join(f"{name} {word}" for word in text.split()) for text in passages(200))


def test_further_texts_are_own_sources_under_one_tokenizer(tmp_path: Path) -> None:
    for name in ("apples", "berries"):
        (tmp_path / name).mkdir()
    texts = [written(tmp_path / name, fruit(name)) for name in ("apples", "berries")]
    made = prepare(texts[0], tmp_path / "out", TextPreparation(300), texts[1:])
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    assert {shard.source for shard in made.shards} == {0, 1}
    for shard in made.shards:
        tokens = load_shard(tmp_path / "out" / "shards" / f"{shard.digest}.safetensors").tolist()
        words = set(tokenizer.decode(tokens).split())
        assert ("apples" in words, "berries" in words) == (shard.source == 0, shard.source == 1)
    assert made.size == sum(shard.size for shard in made.shards)
    assert made.characters == len(fruit("apples")) + len(fruit("berries"))
    held = tokenizer.decode(load_shard(tmp_path / "out" / "heldout.safetensors").tolist())
    assert "apples the" in held
    assert "berries the" in held
    pieces = [str(piece) for piece in made.verdict.pieces]
    assert [("apples" in piece, "berries" in piece) for piece in pieces] == [(True, False), (False, True)] * 2 + [
        (True, False)
    ]
    assert made.ready.startswith("The dataset of 2 texts is ready: ")


LINES = {
    name: [f"{name} {text}" for text in passages(80, 100 * place)]
    for place, name in enumerate(("apple", "berry", "cherry"))
}


def brought(folder: Path, **files: bytes) -> PreparedText:
    """Prepare several sources, each a file of lines with this name."""
    paths = [put(folder, f"{name}.jsonl", content) for name, content in files.items()]
    names = [path.name for path in paths]
    return prepare(paths[0], folder / "out", TextPreparation(300), paths[1:], names=names)


def rows_of(name: str) -> bytes:
    return json_lines(*({"text": text} for text in LINES[name]))


def held_in(folder: Path) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "out" / "tokenizer" / "tokenizer.json"))
    return str(tokenizer.decode(load_shard(folder / "out" / "heldout.safetensors").tolist()))


def test_a_source_named_as_set_aside_is_held_out(tmp_path: Path) -> None:
    """Nothing is learned from it, and nothing else is held out."""
    made = brought(
        tmp_path, val=rows_of("cherry"), train=rows_of("apple"), more=rows_of("berry"), test=rows_of("berry")
    )
    assert {shard.source for shard in made.shards} == {1, 2}
    assert [word for word in LINES if f"{word} " in held_in(tmp_path)] == ["cherry"]
    assert (made.verdict.heldout, made.verdict.heldout_overlap, made.verdict.rows) == ("validation", 0, 160)
    assert codes_of(made.verdict) == ["E435"]
    assert made.verdict.left_out == {"set aside as a test": 1}


def test_copies_of_a_source_set_aside_are_not_trained_on(tmp_path: Path) -> None:
    made = brought(tmp_path, train=rows_of("apple"), more=rows_of("berry") + rows_of("cherry"), test=rows_of("cherry"))
    assert made.verdict.left_out == {"held out of another text": 80}
    assert (made.verdict.heldout, made.verdict.heldout_overlap) == ("test", 0)


@pytest.mark.parametrize("content", [b"", json_lines({"id": 1}), b"\x00\x01\x02" * 99], ids=["empty", "ids", "noise"])
def test_a_source_set_aside_that_cannot_be_read_is_asked_about(tmp_path: Path, content: bytes) -> None:
    made = brought(tmp_path, train=rows_of("apple"), val=content)
    assert codes_of(made.verdict) == ["E462"]
    assert "a part of the training data is held out" in made.verdict.findings[0].text
    assert made.verdict.heldout == ""
    assert "apple " in held_in(tmp_path)


def test_a_source_set_aside_beside_no_training_part_is_asked_about(tmp_path: Path) -> None:
    made = brought(tmp_path, book=rows_of("apple"), test=zipped({"a.jsonl": rows_of("berry")}))
    assert codes_of(made.verdict) == ["E446"]
    assert {shard.source for shard in made.shards} == {0, 1}


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
    pieces = [str(piece) for piece in prepared.verdict.pieces]
    assert len(pieces) == 5
    assert all(100 < len(piece) <= 200 for piece in pieces)
    assert all(piece.split()[0] in docstrings() for piece in pieces)


def test_the_same_text_gives_the_same_shards(prepared: PreparedText, tmp_path: Path) -> None:
    assert prepare(written(tmp_path, docstrings()), tmp_path, TextPreparation(1024)) == prepared


@pytest.mark.parametrize("text", ["a", "\n", "語", "Two words.", "x" * 2000])
def test_a_tiny_text_is_enough(text: str, tmp_path: Path) -> None:
    result = prepare(written(tmp_path, text), tmp_path, TextPreparation(300))
    assert result.heldout is None
    assert [shard.size >= 2 for shard in result.shards] == [True]
    assert result.vocab >= 257
    assert not (tmp_path / "heldout.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "E303"), (b"\xff\xfea", "E302"), (b"%PDF-1.7", "E424"), (b'{"text": 5}\n', "E382"), (b"PAR1", "E381")],
)
def test_what_is_refused_leaves_no_file_behind(content: bytes, code: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=code):
        prepare(written(tmp_path, content), tmp_path / "out", TextPreparation(300))
    assert [*(tmp_path / "out").rglob("*")] == []


def test_a_refusal_while_reading_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer_agent.site_work.intake.texts.UNPACKED_LEAST", 0)
    monkeypatch.setattr("peer_agent.site_work.intake.texts.UNPACKED_TIMES", 0)
    with pytest.raises(Problem, match="E395"):
        prepare(written(tmp_path, "many hands " * 1000), tmp_path / "out", TextPreparation(300))
    assert [*(tmp_path / "out").rglob("*")] == []


def test_rows_are_prepared_as_a_text_is(tmp_path: Path) -> None:
    texts = passages(300)
    lines = put(tmp_path, "a.jsonl", json_lines(*({"text": text} for text in texts), b"{"))
    made = prepare(lines, tmp_path / "a", TextPreparation(400))
    assert made.characters == sum(map(len, texts))
    assert made.ready.endswith("They are the field 'text' of 301 rows. 1 are left out: 1 broken.")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"tokenizer", "shards", "heldout.safetensors"}
    same = prepare(
        put(tmp_path, "b", table([{"text": text} for text in texts])), tmp_path / "b-out", TextPreparation(400)
    )
    assert same.shards == made.shards, "whatever the rows are packed in"
    assert same.heldout == made.heldout


def test_a_part_set_aside_is_held_out_as_it_is(tmp_path: Path) -> None:
    parts = {"train.txt": "\n\n".join(passages(200)).encode(), "val.txt": passages(1, 900)[0].encode()}
    made = prepare(put(tmp_path, "a.zip", zipped(parts)), tmp_path / "out", TextPreparation(300))
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    assert tokenizer.decode(load_shard(tmp_path / "out" / "heldout.safetensors").tolist()) == passages(1, 900)[0]
    assert made.characters == len(parts["train.txt"])


def test_a_field_and_a_name_are_taken_for_each_text(tmp_path: Path) -> None:
    rows = [{"text": passage(9, 20), "body": text} for text in passages(30)]
    paths = [put(tmp_path, name, json_lines(*rows)) for name in ("a", "b")]
    named: dict[str, Any] = {"names": ["a.jsonl", "b.jsonl"], "fields": ["", "body"]}
    made = prepare(paths[0], tmp_path / "out", TextPreparation(300), paths[1:], **named)
    assert made.verdict.field == "text; body"
    (tmp_path / "c").write_text("Plain words.\n" * 30)
    with pytest.raises(Problem, match=r"E427.*c\.json"):
        prepare(tmp_path / "c", tmp_path / "other", TextPreparation(300), names=["c.json"])


@pytest.mark.parametrize("vocab", [256, 65_537])
def test_a_vocabulary_out_of_bounds_has_a_number(vocab: int, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E301"):
        prepare(written(tmp_path, "text"), tmp_path, TextPreparation(vocab))


def test_a_place_that_cannot_be_written_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(Problem, match="E106"):
        prepare(written(tmp_path, "text"), tmp_path / "out", TextPreparation(300))


WORDS = docstrings()[:60_000]


def bert() -> Tokenizer:
    """Return a WordPiece tokenizer that truncates texts by itself. Its special tokens do not have the lowest ids."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator([WORDS], trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]"]))
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.enable_truncation(16)
    made.enable_padding(length=16)
    return made


def llama() -> Tokenizer:
    """Return a byte-level BPE tokenizer that puts `<s>` before every text. Texts end with `</s>`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<s>", "</s>"]
    made.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], pair=["<s>", "$A", "$B"], special_tokens=[("<s>", 1)]
    )
    return made


def kept(tmp_path: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    """Save a tokenizer the way the Hub does: as a folder if there are settings, otherwise as a file."""
    if not settings:
        tokenizer.save(str(tmp_path / "brought.json"))
        return tmp_path / "brought.json"
    (tmp_path / "brought").mkdir()
    tokenizer.save(str(tmp_path / "brought" / "tokenizer.json"))
    (tmp_path / "brought" / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path / "brought"


def test_a_language_model_ends_texts_as_its_tokenizer_does(tmp_path: Path) -> None:
    recipe = CausalLM(model=Model(width=32, context=32), vocab=300)
    brought = kept(tmp_path, llama())
    made = prepare(written(tmp_path, WORDS), tmp_path / "out", recipe.preparation(), base=brought)
    assert (made.vocab, made.end) == (400, 2)
    recipe = recipe.fitted({"vocab": made.vocab, "end": made.end})
    tokens = load_shard(tmp_path / "out" / "shards" / f"{made.shards[0].digest}.safetensors")
    assert (tokens == 2).sum() > 10, "one after each document"
    assert not (tokens == 1).any(), "and nothing before it"
    save_model(recipe, build_model(recipe), tmp_path / "out", tmp_path / "released")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "released", local_files_only=True)
    assert tokenizer("Many hands")["input_ids"] == llama().encode("Many hands", add_special_tokens=False).ids
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "released", local_files_only=True)
    assert (tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.pad_token_id) == (2, 2, 2)


def test_masked_model_finds_its_special_tokens_wherever_they_lie(tmp_path: Path) -> None:
    made = prepare(written(tmp_path, WORDS), tmp_path / "out", MaskedLM().preparation(), base=kept(tmp_path, bert()))
    own = bert()
    names = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert made.special == tuple(own.token_to_id(name) for name in names)
    assert made.special[0] == 0
    assert made.special[1] > 400
    text = load_sentences(tmp_path / "out" / "shards" / f"{made.shards[0].digest}.safetensors")
    assert len(text.tokens) > 3000, "no text is cut short"
    assert not set(made.special[2:]) & set(text.tokens.tolist())
    assert MaskedLM().fitted({"vocab": made.vocab, "special": list(made.special)}).special == made.special
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer", local_files_only=True)
    ids = tokenizer("many", "hands")["input_ids"]
    assert [ids[0], ids[-1], ids.count(made.special[3])] == [made.special[2], made.special[3], 2]
    assert tokenizer.mask_token == "[MASK]"


def test_settings_say_which_tokens_have_which_role(tmp_path: Path) -> None:
    end = {"content": "<s>", "lstrip": False}
    taken = take_tokenizer(kept(tmp_path, llama(), eos_token=end), tmp_path / "out", sentences=False)
    assert taken.end == 1
    other = take_tokenizer(kept(tmp_path, llama()), tmp_path / "again", sentences=False)
    assert other.end == 2, "without them, the usual names do"


def test_as_it_was_made_here_it_is_what_it_was(tmp_path: Path) -> None:
    recipe = MaskedLM(vocab=400)
    first = prepare(written(tmp_path, WORDS), tmp_path / "first", recipe.preparation())
    again = prepare(
        written(tmp_path, WORDS), tmp_path / "again", recipe.preparation(), base=tmp_path / "first" / "tokenizer"
    )
    assert again.special == (0, 1, 2, 3, 4)
    assert replace(again, special=()) == first
    assert recipe.fitted({"vocab": first.vocab}) == recipe.fitted({"vocab": first.vocab, "special": again.special})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "can be read"),
        (b"[]", "can be read"),
        (b"\xff", "can be read"),
        (b"[" * 100_000, "can be read"),
        (b"{}", "it cannot be read"),
        (b'{"model": {"type": "Pickle"}}', "it cannot be read"),
    ],
)
def test_what_is_no_tokenizer(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "brought.json").write_bytes(content)
    with pytest.raises(Problem, match=f"E372.*({said})"):
        take_tokenizer(tmp_path / "brought.json", tmp_path / "out", sentences=False)


def test_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Problem, match=r"E372.*tokens such as \[PAD\], <mask>"):
        take_tokenizer(kept(tmp_path, llama()), tmp_path / "out", sentences=True)
    endless = bert()
    endless.add_special_tokens(["<mask>"])
    monkeypatch.setattr(module, "ENDS", ("<|endoftext|>",))
    with pytest.raises(Problem, match=r"E372.*ends a text"):
        take_tokenizer(kept(tmp_path, endless), tmp_path / "out", sentences=False)
    monkeypatch.setattr(module, "LARGEST_VOCAB", 300)
    with pytest.raises(Problem, match=r"E372.*400 tokens"):
        take_tokenizer(kept(tmp_path, llama()), tmp_path / "out", sentences=False)
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with pytest.raises(Problem, match=r"E372.*larger than"):
        take_tokenizer(kept(tmp_path, llama()), tmp_path / "out", sentences=False)


def test_one_token_has_one_role(tmp_path: Path) -> None:
    settings = {"cls_token": "[SEP]", "sep_token": "[SEP]"}
    with pytest.raises(Problem, match=r"E372.*two roles"):
        take_tokenizer(kept(tmp_path, bert(), **settings), tmp_path / "out", sentences=True)


def test_a_file_that_says_truncation_cuts_no_document_short(tmp_path: Path) -> None:
    """A tokenizer supplied with a model may truncate texts, but must not shorten documents."""
    own = bert()
    path = written(tmp_path, WORDS)
    with open_texts(Source(path), tmp_path / "rows") as opened:
        made = cut([Texts(0, path, opened, [])], tmp_path / "out", own, end=0)
    assert made.size > 3000


def test_numbers_that_are_left_out_are_rows_all_the_same(tmp_path: Path) -> None:
    vocab = {"[UNK]": 0, "[SEP]": 900, **{word: 300 + place for place, word in enumerate(("many", "hands"))}}
    holes = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    holes.pre_tokenizer = pre_tokenizers.Whitespace()
    path = written(tmp_path, "many hands " * 400)
    with open_texts(Source(path), tmp_path / "rows") as opened:
        assert cut([Texts(0, path, opened, [])], tmp_path / "out", holes, end=900).vocab == 901
