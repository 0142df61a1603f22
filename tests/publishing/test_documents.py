"""Checking a text and cutting it up, as a stream."""

from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing import documents as module
from peer_agent.publishing.documents import BLOCK, LONGEST, SHORTEST, open_documents
from tests.publishing.texts import docstrings, written


def test_nothing_is_lost_or_changed(tmp_path: Path) -> None:
    text = docstrings() + "ünïcödé 🤝 " * 1000
    with open_documents(written(tmp_path, text), tmp_path / "rows") as documents:
        assert "".join(documents[number] for number in range(len(documents))) == text
        assert (documents.characters, documents.bytes) == (len(text), len(text.encode()))


def test_documents_are_of_one_size_and_end_where_paragraphs_do(tmp_path: Path) -> None:
    text = "\n\n".join("A sentence of words. " * 20 for _ in range(100))
    with open_documents(written(tmp_path, text), tmp_path / "rows") as documents:
        cut = [documents[number] for number in range(len(documents))]
    assert all(SHORTEST <= len(document) <= LONGEST for document in cut[:-1])
    assert all(document.endswith("\n\n") for document in cut[:-1])


def test_a_text_without_any_break_is_cut_all_the_same(tmp_path: Path) -> None:
    with open_documents(written(tmp_path, "語" * 10_000), tmp_path / "rows") as documents:
        assert max(len(documents[number]) for number in range(len(documents))) == LONGEST


def test_a_character_may_straddle_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 7)
    text = "語🤝é" * 50
    with open_documents(written(tmp_path, text), tmp_path / "rows") as documents:
        assert "".join(documents[number] for number in range(len(documents))) == text


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    with open_documents(written(tmp_path, b"\xef\xbb\xbfhello"), tmp_path / "rows") as documents:
        assert (documents[0], documents.bytes) == ("hello", 5)


@pytest.mark.parametrize(
    ("content", "position", "byte"),
    [
        (b"caf\xe9 au lait", 3, "e9"),
        (b"\xff\xfeh\x00i\x00", 0, "ff"),
        (b"cut short \xe8\xaa", 10, "e8"),
        (b"a" * (BLOCK - 1) + "é".encode() + b"b" * 10 + b"\x80", BLOCK + 11, "80"),
        (b"a" * (BLOCK - 1) + b"\xc3" + b"b", BLOCK - 1, "c3"),
    ],
)
def test_what_is_not_utf8_is_named_by_its_place(content: bytes, position: int, byte: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=rf"E302.*byte {position}: 0x{byte}"):
        open_documents(written(tmp_path, content), tmp_path / "rows")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_a_number(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E303"):
        open_documents(written(tmp_path, content), tmp_path / "rows")


def test_the_order_is_a_fixed_shuffle(tmp_path: Path) -> None:
    with open_documents(written(tmp_path, docstrings()), tmp_path / "rows") as documents:
        order = documents.order()
        assert order == documents.order()
        assert sorted(order) == list(range(len(documents)))
        assert order != sorted(order)


class TestFolders:
    def test_texts_follow_one_another_and_none_goes_on_in_the_next(self, tmp_path: Path) -> None:
        folder = filled(tmp_path, {"00001": b"\xef\xbb\xbfclap?", "00000": b"What has hands"})
        with open_documents(folder, tmp_path / "rows") as documents:
            assert [documents[number] for number in range(len(documents))] == ["What has hands", "clap?"]
            assert (documents.characters, documents.note) == (19, "")
        assert not (tmp_path / "rows").exists()

    def test_rows_of_all_files_have_one_field(self, tmp_path: Path) -> None:
        first = b'{"text": "Many hands", "note": "x"}\n'
        folder = filled(tmp_path, {"00000": first, "00001": b'{"text": "make light work"}\n{"note": "y"}\n'})
        with open_documents(folder, tmp_path / "rows") as documents:
            assert [documents[number] for number in range(len(documents))] == ["Many hands", "make light work"]
            assert "'text' of 3 rows" in documents.note
            assert "1 without text" in documents.note

    @pytest.mark.parametrize("files", [{}, {"00000": b""}, {"00000": b"", "00001": b""}])
    def test_without_a_letter(self, tmp_path: Path, files: dict[str, bytes]) -> None:
        with pytest.raises(Problem, match="E303"):
            open_documents(filled(tmp_path, files), tmp_path / "rows")

    def test_a_byte_that_is_wrong(self, tmp_path: Path) -> None:
        with pytest.raises(Problem, match="E302"):
            open_documents(filled(tmp_path, {"00000": b"Many", "00001": b"hands\xff"}), tmp_path / "rows")


def filled(tmp_path: Path, files: dict[str, bytes]) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
