"""Documents as agents cut them: from the column of a Parquet file, or from a stream of texts."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.documents import LONGEST, SHORTEST, cut_documents, open_column
from tests.publishing.texts import docstrings


def column(folder: Path, texts: list[str | None]) -> Path:
    parquet.write_table(pa.table({"note": ["x"] * len(texts), "text": pa.array(texts, pa.string())}), folder / "file")
    return folder / "file"


def test_a_text_is_neither_shortened_nor_changed() -> None:
    text = docstrings() + "ünïcödé 🤝 " * 1000
    assert "".join(cut_documents([text])) == text
    parts = [text[at : at + 700] for at in range(0, len(text), 700)]
    assert [*cut_documents(parts)] == [*cut_documents([text])], "however it arrives"
    assert [*cut_documents([])] == [*cut_documents(["", ""])] == []


def test_documents_end_where_paragraphs_end() -> None:
    cut = [*cut_documents(["\n\n".join("A sentence of words. " * 20 for _ in range(100))])]
    assert all(SHORTEST <= len(document) <= LONGEST for document in cut[:-1])
    assert all(document.endswith("\n\n") for document in cut[:-1])


def test_a_text_without_any_break_is_cut_too() -> None:
    assert max(map(len, cut_documents(["語" * 10_000]))) == LONGEST


def test_no_document_has_two_rows_of_a_column(tmp_path: Path) -> None:
    long = "A sentence of words. " * 300
    with open_column(column(tmp_path, ["One.", None, " ", long, "Two."]), "text", tmp_path / "rows") as documents:
        cut = [documents[number] for number in range(len(documents))]
        assert (documents.characters, documents.field) == (len(long) + 8, "text")
        assert documents.bytes == sum(documents.size(number) for number in range(len(documents)))
        order = documents.order()
        assert order == documents.order()
        assert sorted(order) == list(range(len(documents))) != order
    assert (cut[0], cut[-1], "".join(cut[1:-1])) == ("One.", "Two.", long)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("texts", [[], [None], ["", "a"]])
def test_a_column_without_text_is_refused(tmp_path: Path, texts: list[str | None]) -> None:
    with pytest.raises(Problem, match="E382"):
        open_column(column(tmp_path, texts), "text", tmp_path / "rows")
