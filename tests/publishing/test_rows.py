"""One column of a Parquet file, as agents read it: rows left out, and limits on sizes."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import rows as module
from peer_agent.publishing.rows import is_bounded, texts_of

TEXTS = [f"Row {number} says ünïcödé 🤝." for number in range(50)]


def table(folder: Path, texts: list[str | None], **options: object) -> Path:
    parquet.write_table(pa.table({"id": range(len(texts)), "text": texts}), folder / "file", **options)
    return folder / "file"


def test_texts_come_in_order(tmp_path: Path) -> None:
    assert [*texts_of(table(tmp_path, [*TEXTS], row_group_size=7), "text")] == TEXTS


def test_useless_rows_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROW_BYTES", 300)
    found = [*texts_of(table(tmp_path, [None, "", " \n ", "a", "b" * 301, *TEXTS, "c" * 300]), "text")]
    assert found == [*TEXTS, "c" * 300]


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, [*TEXTS])
    whole = path.read_bytes()
    for content in (b"", b"PAR1", b"PAR1" + b"x" * 500, whole[: len(whole) // 2], whole[:-30] + b"\xff" * 30):
        path.write_bytes(content)
        with pytest.raises(Problem, match="E381"):
            next(texts_of(path, "text"))


def test_a_row_group_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    path = table(tmp_path, [*TEXTS], row_group_size=10, compression="none", use_dictionary=False)
    content = path.read_bytes()
    middle = content.index(b"Row 25")
    path.write_bytes(content[: middle - 60] + b"\xff" * 60 + content[middle:])
    found = [*texts_of(path, "text")]
    assert 40 <= len(found) < 50
    assert (found[:20], found[-20:]) == (TEXTS[:20], TEXTS[30:])


@pytest.mark.parametrize(("name", "limit"), [("GROUP_ROWS", 5), ("GROUP_BYTES", 10)])
def test_sizes_in_a_footer_are_limited(tmp_path: Path, name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, [*TEXTS], row_group_size=10)
    about = parquet.ParquetFile(path).metadata.row_group(0)
    assert is_bounded(about)
    monkeypatch.setattr(module, name, limit)
    assert not is_bounded(about)
    assert [*texts_of(path, "text")] == []
