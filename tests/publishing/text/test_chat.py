"""Conversations written out by a model's own template, which may be anybody's program."""

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text import chat as module
from peer_agent.publishing.text import documents as documents_module
from peer_agent.publishing.text.adapted import prepare
from peer_agent.publishing.text.chat import ChatTemplate, Writer
from peer_agent.publishing.text.documents import open_documents
from peer_agent.publishing.text.parquet import rows_of
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.text.tokens import load_wide_shard
from tests.publishing.texts import written
from tests.recipes.finetune_lora.small_base import change, model_folder, zipped

CHATML = """{%- for message in messages %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("Unknown role " ~ message.role) }}
    {%- endif %}
    {{- "<|" + message.role + "|>" + message.content | trim + eos_token }}
{%- endfor %}"""
SAID = [{"role": "user", "content": " What is 2 + 2? "}, {"role": "assistant", "content": "Vier. ünï 🤝"}]
TEXT = "<|user|>What is 2 + 2?<|endoftext|><|assistant|>Vier. ünï 🤝<|endoftext|>"
TEMPLATE = ChatTemplate(CHATML, {"eos_token": "<|endoftext|>"})
TOOLS = [{"role": "tool", "content": "4"}]


def rows(*conversations: Any, field: str = "messages", **more: Any) -> bytes:
    return b"".join(json.dumps({field: each, **more}).encode() + b"\n" for each in conversations)


def documents(path: Path, folder: Path, template: ChatTemplate = TEMPLATE) -> tuple[list[str], str]:
    with Writer(template) as writer, open_documents(path, folder / "rows", writer) as found:
        return [found[number] for number in range(len(found))], found.note


def test_it_is_what_transformers_writes(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with Writer(TEMPLATE) as writer:
        assert writer.write(SAID) == TEXT
        assert tokenizer.apply_chat_template(SAID, tokenize=False, chat_template=CHATML) == TEXT
        assert writer.write(TOOLS) is None
        assert writer.refusal == "Unknown role tool"
        assert writer.write(SAID[:1]) == "<|user|>What is 2 + 2?<|endoftext|>", "and it goes on"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "took more than 5 s"),
        ("{{ 'x' * 3000000000 }}", "took more than 1,024 MB"),
        (
            "{% set n = namespace(x='x' * 99999) %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "took more than 1,024 MB",
        ),
    ],
)
def test_a_template_that_takes_too_much_ends_by_itself(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Writer(ChatTemplate(source, {})) as writer, pytest.raises(Problem, match=f"E394.*{reason}"):
        writer.write(SAID)


def test_one_that_is_slow_for_each_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_S", 0.2)
    monkeypatch.setattr(module, "MEAN_S", 0.001)
    with Writer(ChatTemplate("{% for a in range(99999) %}{{ a }}{% endfor %}", {})) as writer:
        with pytest.raises(Problem, match=r"E394.*1 ms in the mean"):
            list(map(writer.write, [SAID] * 1000))
        assert writer._written > 1, "a few may take long"


def test_what_a_template_repeats_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "UNPACKED_LEAST", 1 << 20)
    template = ChatTemplate("{{ 'x' * 1000000 }}", {})
    assert len(documents(written(tmp_path, rows(SAID)), tmp_path, template)[0]) > 1
    with pytest.raises(Problem, match=r"E395.*more than 1 MB"):
        documents(written(tmp_path, rows(*[SAID] * 5)), tmp_path, template)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "xpected"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.nothing.there }}", "no attribute"),
    ],
)
def test_one_that_is_none_refuses(source: str, words: str) -> None:
    with Writer(ChatTemplate(source, {})) as writer:
        assert writer.write(SAID) is None
        assert words in writer.refusal


def test_one_that_writes_too_much_refuses() -> None:
    with Writer(ChatTemplate("{{ 'x' * 9000000 }}", {})) as writer:
        assert writer.write(SAID) is None
        assert writer.refusal == "it is too long"


SHARED = [{"from": "human", "value": "What is 2 + 2?"}, {"from": "gpt", "value": "Vier. ünï 🤝"}]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize(("field", "said"), [("messages", SAID), ("conversations", SHARED)])
def test_each_conversation_is_a_document(tmp_path: Path, kind: str, field: str, said: Any) -> None:
    """By either way in which people keep them, before a field with text."""
    path = written(tmp_path, rows(*[said] * 30, field=field, text="A text beside it."))
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist([{field: said, "text": "beside"}] * 30), path)
    found, note = documents(path, tmp_path)
    assert found == [TEXT] * 30
    assert note == f" They are conversations, the field {field!r} of 30 rows."


def test_a_conversation_is_not_cut_as_texts_are(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "words and words. " * 300}]
    assert len(documents(written(tmp_path, rows(long)), tmp_path)[0]) == 1
    longer = [{"role": "user", "content": "words and words. " * 5000}]
    assert len(documents(written(tmp_path, rows(longer)), tmp_path)[0]) > 20


def test_what_the_template_refuses_is_counted(tmp_path: Path) -> None:
    content = rows(SAID, TOOLS, [], [{"id": 5}], [5], [{"role": "user", "content": None}], SAID) + b"{\n"
    found, note = documents(written(tmp_path, content), tmp_path)
    assert found == [TEXT] * 2
    assert note.endswith("6 of 8 rows are left out: 1 broken, 4 without text, 1 refused by the template.")


def test_a_list_that_is_no_conversation_spoils_no_row(tmp_path: Path) -> None:
    found, _ = documents(written(tmp_path, rows(*[[5, 6]] * 30, text="A text.")), tmp_path)
    assert found == ["A text."] * 30


def test_what_most_rows_have_is_taken(tmp_path: Path) -> None:
    texts = b"".join(json.dumps({"text": f"Text {number}."}).encode() + b"\n" for number in range(30))
    found, _ = documents(written(tmp_path, texts + rows(SAID)), tmp_path)
    assert found == [f"Text {number}." for number in range(30)]


def test_without_a_template_texts_beside_conversations_are_taken(tmp_path: Path) -> None:
    found, _ = documents(written(tmp_path, rows(*[SAID] * 30, text="A text.")), tmp_path, ChatTemplate("", {}))
    assert found == ["A text."] * 30


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("has_writer", [False, True])
def test_a_field_of_that_name_may_have_texts(tmp_path: Path, kind: str, *, has_writer: bool) -> None:
    path = written(tmp_path, rows(*["A text."] * 30))
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist([{"messages": "A text."}] * 30), path)
    with Writer(TEMPLATE) as writer, open_documents(path, tmp_path / "r", writer if has_writer else None) as found:
        assert [found[number] for number in range(len(found))] == ["A text."] * 30


def test_a_list_that_is_too_long_is_never_made_objects(tmp_path: Path) -> None:
    long = pa.ListArray.from_arrays(
        pa.array([0, 2_000_000, 2_000_002]),
        pa.StructArray.from_arrays(
            [pa.array(["user"] * 2_000_002), pa.array(["Hello."] * 2_000_002)], names=["role", "content"]
        ),
    )
    path = tmp_path / "file"
    parquet.write_table(pa.table({"messages": long, "text": ["a", "b"]}), path)
    tracemalloc.start()
    try:
        (first, second) = rows_of(path, "messages", lists=("messages",), longest=1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first == {}
    assert second is not None
    assert len(second["messages"]) == 2
    assert peak < 5_000_000


@pytest.mark.parametrize(
    ("template", "said", "code"),
    [(ChatTemplate("", {}), SAID, "E393"), (TEMPLATE, TOOLS, r"E394.*Unknown role tool")],
)
def test_where_none_can_be_written_it_is_said(tmp_path: Path, template: ChatTemplate, said: Any, code: str) -> None:
    with pytest.raises(Problem, match=code):
        documents(written(tmp_path, rows(*[said] * 30)), tmp_path, template)


def test_texts_need_no_template(tmp_path: Path) -> None:
    assert documents(written(tmp_path, "Plain words.\n" * 30), tmp_path, ChatTemplate("", {}))[0]


def test_a_process_that_does_not_begin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Writer(TEMPLATE) as writer, pytest.raises(Problem, match=r"E394.*does not start"):
        writer.write(SAID)


def test_a_base_is_adapted_to_conversations(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "base")
    change(folder / "tokenizer_config.json", {"chat_template": CHATML})
    path = written(tmp_path, rows(*[SAID] * 400))
    made = prepare(path, tmp_path / "out", AdaptedText(), base=zipped(folder))
    assert "conversations" in made.ready
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    shard = load_wide_shard(tmp_path / "out" / "shards" / f"{made.shards[0].digest}.safetensors")
    end = tokenizer.token_to_id("<|endoftext|>")
    assert end is not None
    document = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert document.count(end) == 2, "its special tokens are tokens"
    assert shard[: len(document) + 1].tolist() == [*document, end]
