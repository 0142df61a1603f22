"""Rows with texts: which field is taken, what is left out, and that no row is too large."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.text import parquet as parquet_module
from peer_agent.publishing.text import rows as module
from peer_agent.publishing.text.documents import LONGEST, open_documents
from peer_agent.publishing.text.prepare import prepare
from peer_agent.publishing.text.rows import ROW_BYTES, kind_of, left_out, texts_of
from peer_agent.recipes.text.preparation import TextPreparation
from tests.publishing.texts import docstrings, written

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
