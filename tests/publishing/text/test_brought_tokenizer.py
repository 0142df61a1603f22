"""Tokenizers that people bring: BERT's, GPT-2's and Llama's way of having them, and what is none."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text import brought_tokenizer as module
from peer_agent.publishing.text.brought_tokenizer import take_tokenizer
from peer_agent.publishing.text.documents import open_documents
from peer_agent.publishing.text.prepare import cut, prepare
from peer_agent.recipes.causal_lm import CausalLM, Model
from peer_agent.recipes.causal_lm.training import build_model, save_model
from peer_agent.recipes.masked_lm import MaskedLM
from peer_agent.recipes.text.tokens import load_sentences, load_shard
from tests.publishing.texts import docstrings, written

WORDS = docstrings()[:60_000]


def bert() -> Tokenizer:
    """WordPiece, whose special tokens are not the first ones; it cuts texts short by itself."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator([WORDS], trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[PAD]"]))
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made.enable_truncation(16)
    made.enable_padding(length=16)
    return made


def llama() -> Tokenizer:
    """Byte-level BPE that puts `<s>` before every text; `</s>` ends one."""
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
    """As the Hub has it: a folder with settings, where there are some; else a file."""
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


def test_a_model_that_reads_has_its_special_tokens_wherever_they_lie(tmp_path: Path) -> None:
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
    """The tokenizer of one run, brought to another."""
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
    """As of a model that is adapted, whose tokenizer is taken as it is."""
    own = bert()
    with open_documents(written(tmp_path, WORDS), tmp_path / "rows") as documents:
        made = cut([documents], tmp_path / "out", own, end=0)
    assert made.size > 3000


def test_numbers_that_are_left_out_are_rows_all_the_same(tmp_path: Path) -> None:
    vocab = {"[UNK]": 0, "[SEP]": 900, **{word: 300 + place for place, word in enumerate(("many", "hands"))}}
    holes = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    holes.pre_tokenizer = pre_tokenizers.Whitespace()
    with open_documents(written(tmp_path, "many hands " * 400), tmp_path / "rows") as documents:
        assert cut([documents], tmp_path / "out", holes, end=900).vocab == 901
