"""Datasets made of rows: the chosen text field, rows left out, and limits on row size."""

import json
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import documents as documents_module
from peer_agent.publishing import rows as module
from peer_agent.publishing import rows as parquet_module
from peer_agent.publishing.documents import LONGEST, open_documents
from peer_agent.publishing.rows import ROW_BYTES, ChatTemplate, Writer, kind_of, left_out, rows_of, texts_of
from peer_agent.recipes.finetune_lora.preparation import AdaptedText
from peer_agent.recipes.text.preparation import TextPreparation
from peer_agent.recipes.text.tokens import load_wide_shard
from peer_agent.site_work import brought_model
from peer_agent.site_work.prepare_text import prepare
from tests.publishing.texts import docstrings, written
from tests.recipes.finetune_lora.small_base import change, model_folder, zipped

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f"Row {n} says ünïcödé 🤝.", "url": "http://x.y/" * 9} for n in range(50)
]


def json_lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def table(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    parquet.write_table(pa.Table.from_pylist(rows), folder / "file", **options)
    return folder / "file"


def taken(path: Path) -> tuple[str, list[str], Counter[str]]:
    field, texts, counted, _ = texts_of([path])
    return field, list(texts), counted


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_each_rows_text_is_taken_in_order(tmp_path: Path, kind: str) -> None:
    path = table(tmp_path, ROWS, row_group_size=7) if kind == "parquet" else written(tmp_path, json_lines(*ROWS))
    assert kind_of(path) == kind
    field, texts, counted = taken(path)
    assert (field, counted) == ("text", Counter(rows=50))
    assert texts == [row["text"] for row in ROWS]
    assert left_out(counted) == ""


@pytest.mark.parametrize(
    "content", ["Plain words.\n" * 30, '{"text": 1}\n' + "words\n" * 30, "[1]\n" * 30, "", "1\n2\n"]
)
def test_what_is_no_table_is_a_text(tmp_path: Path, content: str) -> None:
    assert kind_of(written(tmp_path, content)) == "text"


def test_lines_are_rows_where_most_of_the_first_ones_are(tmp_path: Path) -> None:
    broken = [b"{", b'{"text": ', b"oops"]
    assert kind_of(written(tmp_path, json_lines(*broken, *ROWS))) == "json"
    assert kind_of(written(tmp_path, json_lines(*broken, *ROWS[:3]))) == "text"


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"title": "a", "content": "bb", "text": "c"}], "text"),
        ([{"title": "a longer one", "content": "bb"}], "content"),
        ([{"title": "short", "body": "the one with most letters"}], "body"),
        ([{"text": 5, "body": "a text that is a number is none"}], "body"),
        ([{"text": "", "body": "neither is an empty one"}], "body"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_the_field_is_the_usual_one_or_the_one_with_most_letters(
    tmp_path: Path, rows: list[dict[str, Any]], field: str, kind: str
) -> None:
    path = table(tmp_path, rows) if kind == "parquet" else written(tmp_path, json_lines(*rows))
    assert taken(path)[0] == field


def test_rows_without_use_are_counted_and_left_out(tmp_path: Path) -> None:
    useless = [
        b"{", b"[1, 2]", b'"a text"', b'{"text": "cut', b'{"text": "\xff"}', b'{"text": "\\ud800"}', b'{"text": "a"} b',
        b'{"a":' + b"[" * 100_000, {"id": 7}, {"text": None}, {"text": ["a"]}, {"text": "  \n "}, {"text": "a"},
    ]  # fmt: skip
    field, texts, counted = taken(written(tmp_path, json_lines(*ROWS[:20], *useless, *ROWS[20:], b"", b"   ")))
    assert texts == [row["text"] for row in ROWS]
    assert counted == Counter({"rows": 63, "broken": 8, "without text": 5})
    assert left_out(counted) == " 13 of 63 rows are left out: 8 broken, 5 without text."
    assert field == "text"


def test_a_row_that_is_too_long_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_BYTES", 300)
    fits = b'{"text": "' + b"a" * (300 - 12) + b'"}'
    lines = json_lines(*ROWS[:25], b'{"text": "' + b"a" * 10_000 + b'"}', fits, *ROWS[25:])
    _, texts, counted = taken(written(tmp_path, lines))
    assert len(fits) == 300
    assert counted == Counter({"rows": 52, "broken": 1})
    assert texts[25] == "a" * 288
    assert [len(line) for line in lines.split(b"\n")].count(10_012) == 1


def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    import tracemalloc

    with (tmp_path / "file").open("wb") as file:
        file.write(json_lines(*ROWS) + b'{"text": "')
        for _ in range(100):
            file.write(b"a" * (1 << 20))
        file.write(b'"}\n' + json_lines(*ROWS))
    tracemalloc.start()
    counted = taken(tmp_path / "file")[2]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counted == Counter({"rows": 101, "broken": 1})
    assert peak < 5 * ROW_BYTES < 100 << 20


def test_parquet_that_is_none_is_refused(tmp_path: Path) -> None:
    whole = table(tmp_path, ROWS).read_bytes()
    for content in (b"PAR1", b"PAR1" + b"x" * 500, whole[: len(whole) // 2], b"PAR1" + whole[4:-30] + b"\xff" * 30):
        with pytest.raises(Problem, match="E381"):
            texts_of([written(tmp_path, content)])


def test_a_row_group_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, ROWS, row_group_size=10, compression="none", use_dictionary=False)
    content = path.read_bytes()
    middle = content.index(b"Row 25")
    path.write_bytes(content[: middle - 60] + b"\xff" * 60 + content[middle:])
    _, texts, counted = taken(path)
    assert counted["rows"] == 50
    assert 0 < counted["broken"] <= 10
    assert texts[:20] == [row["text"] for row in ROWS[:20]]
    assert texts[-20:] == [row["text"] for row in ROWS[30:]]


def test_what_a_footer_claims_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, ROWS, row_group_size=10)
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 5)
    with pytest.raises(Problem, match=r"E382.*first 25 rows"):
        texts_of([path])
    monkeypatch.undo()
    monkeypatch.setattr(parquet_module, "GROUP_BYTES", 10)
    with pytest.raises(Problem, match=r"E382.*first 50 rows"):
        texts_of([path])


@pytest.mark.parametrize("rows", [[{"id": 1}], [{"text": " "}], [{"text": "a"}], [{"text": ["a", "b"]}]])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_rows_without_any_text_have_a_number(tmp_path: Path, rows: list[dict[str, Any]], kind: str) -> None:
    path = table(tmp_path, rows) if kind == "parquet" else written(tmp_path, json_lines(*rows))
    with pytest.raises(Problem, match="E382"), open_documents(path, tmp_path / "rows"):
        pass


def test_no_document_has_two_rows_and_long_rows_are_cut(tmp_path: Path) -> None:
    long = "A sentence of words. " * 300
    path = written(tmp_path, json_lines(*ROWS, {"text": long}, *ROWS))
    with open_documents(path, tmp_path / "rows") as documents:
        cut = [documents[number] for number in range(len(documents))]
        assert documents.characters == sum(map(len, cut))
    texts = [row["text"] for row in ROWS]
    assert (cut[:50], cut[-50:]) == (texts, texts)
    assert "".join(cut[50:-50]) == long
    assert all(len(document) <= LONGEST for document in cut)
    assert not (tmp_path / "rows").exists()


def test_rows_are_prepared_as_a_text_is(tmp_path: Path) -> None:
    texts = [part for part in docstrings()[:60_000].split("\n\n") if len(part) > 40]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lines = written(tmp_path / "a", json_lines(*({"text": text} for text in texts), b"{"))
    made = prepare(lines, tmp_path / "a" / "out", TextPreparation(400))
    assert made.characters == sum(map(len, texts))
    assert made.ready.endswith(
        f"They are the field 'text' of {len(texts) + 1} rows. 1 of {len(texts) + 1} rows are left out: 1 broken."
    )
    assert {path.name for path in (tmp_path / "a" / "out").iterdir()} == {"tokenizer", "shards", "heldout.safetensors"}
    same = prepare(
        table(tmp_path / "b", [{"text": text} for text in texts]), tmp_path / "b" / "out", TextPreparation(400)
    )
    assert same.shards == made.shards, "whatever the rows are packed in"


def test_a_text_of_parquet_that_is_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_BYTES", 300)
    rows = [*ROWS[:25], {"id": 0, "text": "a" * 301, "url": ""}, {"id": 0, "text": "a" * 300, "url": ""}, *ROWS[25:]]
    _, texts, counted = taken(table(tmp_path, rows))
    assert counted == Counter({"rows": 52, "without text": 1})
    assert texts[25] == "a" * 300


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
        pytest.param(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "took more than 5 s",
            marks=pytest.mark.check,
        ),
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
    made = brought_model.prepare(path, tmp_path / "out", AdaptedText(), base=zipped(folder))
    assert "conversations" in made.ready
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    shard = load_wide_shard(tmp_path / "out" / "shards" / f"{made.shards[0].digest}.safetensors")
    end = tokenizer.token_to_id("<|endoftext|>")
    assert end is not None
    document = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert document.count(end) == 2, "its special tokens are tokens"
    assert shard[: len(document) + 1].tolist() == [*document, end]
