"""Rows of JSON, CSV, Parquet and Arrow files: their format, the rows left out, and limits on memory."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import rows as limits
from peer_agent.publishing.rows import ROW_BYTES
from peer_agent.site_work.intake import rows as module
from peer_agent.site_work.intake.rows import Broken, kind_of, rows_in
from tests.site_work.intake.made import json_lines, put, read, table

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f"Row {n} says ünïcödé 🤝.", "url": "http://x.y/" * 9} for n in range(50)
]
TEXTS = [row["text"] for row in ROWS]


def texts_in(path: Path) -> list[Any]:
    found = rows_in(path, kind_of(path, path.name), path.name)
    return [row.reason if isinstance(row, Broken) else row.get("text") for row in found]


def arrow(rows: list[dict[str, Any]], *, with_footer: bool) -> bytes:
    content, made = pa.BufferOutputStream(), pa.Table.from_pylist(rows)
    with (pa.ipc.new_file if with_footer else pa.ipc.new_stream)(content, made.schema) as writer:
        writer.write_table(made)
    return bytes(content.getvalue())


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.jsonl", json_lines(*ROWS), "json"),
        ("a.parquet", table(ROWS, row_group_size=7), "parquet"),
        ("a.arrow", arrow(ROWS, with_footer=True), "arrow"),
        ("a.feather", arrow(ROWS, with_footer=True), "arrow"),
        ("stream.arrow", arrow(ROWS, with_footer=False), "arrow"),
        ("a.csv", "text,id\n" + "".join(f"{text},{n}\n" for n, text in enumerate(TEXTS)), "csv"),
        ("a.tsv", "text\tid\n" + "".join(f"{text}\t{n}\n" for n, text in enumerate(TEXTS)), "csv"),
        ("semicolons.csv", "text;id\n" + "".join(f"{text};{n}\n" for n, text in enumerate(TEXTS)), "csv"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_rows_are_read_in_order(tmp_path: Path, name: str, content: bytes | str, kind: str) -> None:
    path = put(tmp_path, name, content)
    assert kind_of(path, name) == kind
    assert texts_in(path) == TEXTS


@pytest.mark.parametrize(
    "content", ["Plain words.\n" * 30, '{"text": 1}\n' + "words\n" * 30, "[1]\n" * 30, "", "1\n2\n", "[a note] and on"]
)
def test_other_content_is_a_text(tmp_path: Path, content: str) -> None:
    assert kind_of(put(tmp_path, "a.txt", content), "a.txt") == "text"


@pytest.mark.parametrize("content", ["Plain words.\n" * 30, "[1, 2, 3]", '["a text", "another"]', "{"])
def test_a_file_named_json_is_never_plain_text(tmp_path: Path, content: str) -> None:
    path = put(tmp_path, "a.json", content)
    with pytest.raises(Problem, match=r"E427.*a\.json"):
        kind_of(path, path.name)


def test_most_of_the_first_lines_decide(tmp_path: Path) -> None:
    broken = [b"oops", b"no row", b"words"]
    assert kind_of(put(tmp_path, "a", json_lines(*broken, *ROWS)), "a") == "json"
    assert kind_of(put(tmp_path, "b", json_lines(*broken, *ROWS[:3])), "b") == "text"


def test_useless_rows_are_counted_by_reason(tmp_path: Path) -> None:
    useless = [
        b"{", b"[1, 2]", b'"a text"', b'{"text": "cut', b'{"text": "a"} b',
        b'{"a":' + b"[" * 100_000, {"id": 7}, {"text": None}, {"text": "  \n "}, {"text": "a"},
    ]  # fmt: skip
    documents, verdict = read(put(tmp_path, "a", json_lines(*ROWS[:20], *useless, *ROWS[20:], b"", b"   ")), tmp_path)
    assert documents == TEXTS
    assert (verdict.rows, verdict.left_out) == (60, {"broken": 6, "without text": 4})
    assert verdict.examples["broken"] == ["row 21: {", "row 22: [1, 2]", 'row 23: "a text"']


def test_nan_and_halves_of_characters_spoil_no_row(tmp_path: Path) -> None:
    rows = [b'{"text": "a note", "score": NaN}', b'{"text": "a half \\ud800."}', b'{"text": "more", "size": -Infinity}']
    assert texts_in(put(tmp_path, "a.jsonl", json_lines(*rows))) == ["a note", "a half ?.", "more"]


def test_a_key_with_half_a_character_can_be_told(tmp_path: Path) -> None:
    from peer_agent.site_work.intake.verdict import encode_verdict

    _, verdict = read(put(tmp_path, "a.jsonl", b'{"\\ud800": "Some text."}\n' * 5), tmp_path)
    assert b"Some text" in encode_verdict(verdict)


def test_a_row_that_is_too_long_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_BYTES", 300)
    fits = b'{"text": "' + b"a" * (300 - 12) + b'"}'
    found = texts_in(
        put(tmp_path, "a", json_lines(*ROWS[:25], b'{"text": "' + b"a" * 10_000 + b'"}', fits, *ROWS[25:]))
    )
    assert len(fits) == 300
    assert found == [*TEXTS[:25], "too long", "a" * 288, *TEXTS[25:]]
    rows = [*ROWS[:25], {"id": 0, "text": "a" * 301, "url": ""}, {"id": 0, "text": "a" * 300, "url": ""}, *ROWS[25:]]
    found = texts_in(put(tmp_path, "b", table(rows)))
    assert found == [*TEXTS[:25], "too long", "a" * 300, *TEXTS[25:]]


def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(json_lines(*ROWS) + b'{"text": "')
        for _ in range(100):
            file.write(b"a" * (1 << 20))
        file.write(b'"}\n' + json_lines(*ROWS))
    tracemalloc.start()
    found = texts_in(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [*TEXTS, "too long", *TEXTS]
    assert peak < 5 * ROW_BYTES < 100 << 20


def test_an_array_is_read_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNIFFED", 16)
    array = b"[\n  " + b",\n  ".join(json_lines(*ROWS).splitlines()) + b"\n]\n"
    assert texts_in(put(tmp_path, "a.json", array)) == TEXTS


def test_a_huge_first_row_of_an_array_costs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that was read is not copied for each of the rows behind it."""
    texts, value_at = set[str](), module._value_at

    def counted(text: str, at: int) -> tuple[Any, int]:
        texts.add(text)
        return value_at(text, at)

    monkeypatch.setattr(module, "_value_at", counted)
    huge = "a" * (1 << 20)
    path = put(tmp_path, "a.json", json.dumps([{"text": huge}, *({"text": f"Row {n}."} for n in range(20_000))]))
    found = texts_in(path)
    assert (found[0] == huge, len(found), found[-1]) == (True, 20_001, "Row 19999.")
    assert len(texts) < 50


def test_a_value_of_an_array_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_VALUE", 1 << 18)
    path = put(tmp_path, "a.json", json.dumps([*ROWS[:3], {"text": "a" * (1 << 18)}, *ROWS]))
    with pytest.raises(Problem, match=r"E454.*after its first 3 rows"):
        texts_in(path)


def test_a_list_in_one_object_gives_its_rows(tmp_path: Path) -> None:
    path = put(
        tmp_path, "a.json", b'{"version": 2,\n "data": [\n' + b",\n".join(json_lines(*ROWS).splitlines()) + b"]}"
    )
    assert texts_in(path) == TEXTS


def test_a_list_in_an_object_on_one_line_gives_its_rows(tmp_path: Path) -> None:
    path = put(tmp_path, "a.json", json_lines({"version": 2, "data": ROWS}))
    assert texts_in(path) == TEXTS


def test_array_with_a_broken_row_is_refused(tmp_path: Path) -> None:
    lines = json_lines(*ROWS).splitlines()
    path = put(tmp_path, "a.json", b"[\n" + b",\n".join([*lines[:5], b'{"text": oops}', *lines[5:]]) + b"\n]\n")
    with pytest.raises(Problem, match=r"E454.*after its first 5 rows"):
        read(path, tmp_path)


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    whole = table(ROWS)
    for content in (b"PAR1", b"PAR1" + b"x" * 500, whole[: len(whole) // 2], b"PAR1" + whole[4:-30] + b"\xff" * 30):
        with pytest.raises(Problem, match="E381"):
            texts_in(put(tmp_path, "a", content))


def test_a_broken_arrow_file_is_refused(tmp_path: Path) -> None:
    whole = arrow(ROWS, with_footer=True)
    for content in (b"ARROW1", b"ARROW1" + b"x" * 500, whole[: len(whole) // 2], b"words"):
        with pytest.raises(Problem, match="E381"):
            texts_in(put(tmp_path, "a.arrow", content))


def test_a_row_group_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    content = table(ROWS, row_group_size=10, compression="none", use_dictionary=False)
    middle = content.index(b"Row 25")
    documents, verdict = read(put(tmp_path, "a", content[: middle - 60] + b"\xff" * 60 + content[middle:]), tmp_path)
    assert verdict.rows == 50
    assert 0 < verdict.left_out["broken"] <= 10
    assert documents[:20] == TEXTS[:20]
    assert documents[-20:] == TEXTS[30:]


def test_sizes_in_a_parquet_footer_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a", table(ROWS, row_group_size=10))
    monkeypatch.setattr(limits, "GROUP_BYTES", 10)
    assert texts_in(path) == ["broken"] * 50
    monkeypatch.undo()
    monkeypatch.setattr(limits, "GROUP_ROWS", 5)
    monkeypatch.setattr(module, "GROUP_ROWS", 5)
    assert texts_in(path) == ["broken"] * 25


def test_a_list_that_is_too_long_never_becomes_objects(tmp_path: Path) -> None:
    long = pa.ListArray.from_arrays(
        pa.array([0, 2_000_000, 2_000_002]),
        pa.StructArray.from_arrays(
            [pa.array(["user"] * 2_000_002), pa.array(["Hello."] * 2_000_002)], names=["role", "content"]
        ),
    )
    path = put(tmp_path, "a", table(pa.table({"messages": long, "text": ["a", "b"]})))
    tracemalloc.start()
    try:
        first, second = rows_in(path, "parquet", "a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert first == {"messages": "", "text": "a"}
    assert not isinstance(second, Broken)
    assert len(second["messages"]) == 2
    assert peak < 5_000_000


def test_a_csv_without_a_header_loses_no_row(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "1,A first row of words\n2,A second row of words\n")
    assert [*rows_in(path, "csv", "a.csv")] == [
        {"column 1": "1", "column 2": "A first row of words"},
        {"column 1": "2", "column 2": "A second row of words"},
    ]


def test_a_csv_row_with_too_many_cells_is_broken(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", 'id,text\n1,"a, b"\n2,a, b\n3\n')
    assert texts_in(path) == ["a, b", "with more cells than the header", None]


def test_fields_of_many_names_are_limited(tmp_path: Path) -> None:
    """Rows may use identifiers as names. The verdict must not grow with their number."""
    rows = ({f"document-{number}": f"Text number {number}."} for number in range(3000))
    _, verdict = read(put(tmp_path, "a.jsonl", json_lines(*rows)), tmp_path)
    assert len(verdict.fields) <= 1000
