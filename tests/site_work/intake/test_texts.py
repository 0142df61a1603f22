"""Sources of texts: documents of files and rows, the chosen field, and parts that the organizer set aside."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.documents import LONGEST
from peer_agent.site_work.intake import texts as module
from peer_agent.site_work.intake.texts import Source, open_texts
from tests.publishing.texts import docstrings
from tests.site_work.intake.made import codes_of, json_lines, passage, passages, put, read, table, zipped


def filled(folder: Path, files: dict[str, bytes]) -> Path:
    (folder / "source").mkdir()
    for name, content in files.items():
        put(folder / "source", name, content)
    return folder / "source"


def test_a_text_is_neither_shortened_nor_changed(tmp_path: Path) -> None:
    text = docstrings() + "ünïcödé 🤝 " * 1000
    with open_texts(Source(put(tmp_path, "a.txt", text)), tmp_path / "rows") as opened:
        documents = opened.documents
        assert "".join(documents[number] for number in range(len(documents))) == text
        assert (documents.characters, documents.bytes) == (len(text), len(text.encode()))
        assert (opened.verdict.format, opened.verdict.field) == ("plain text", "")
        order = documents.order()
        assert order == documents.order()
        assert sorted(order) == list(range(len(documents))) != order
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_character_may_lie_in_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 7)
    assert "".join(read(put(tmp_path, "a.txt", "語🤝é" * 50), tmp_path)[0]) == "語🤝é" * 50


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\xff\xfe", gzip.compress(b"", mtime=0), zipped({})])
def test_an_empty_source_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="E303"):
        read(put(tmp_path, "a.txt", content), tmp_path)


def test_a_packed_file_needs_no_suffix(tmp_path: Path) -> None:
    content = gzip.compress(json_lines({"text": "Many hands"}), mtime=0)
    assert read(put(tmp_path, "00000", content), tmp_path)[0] == ["Many hands"]


def test_a_file_in_an_archive_may_have_its_name(tmp_path: Path) -> None:
    assert read(put(tmp_path, "text", zipped({"text": b"Many hands"})), tmp_path)[0] == ["Many hands"]


def test_no_document_has_two_rows_and_long_rows_are_cut(tmp_path: Path) -> None:
    long, texts = "A sentence of words. " * 300, passages(50)
    cut, verdict = read(
        put(tmp_path, "a.jsonl", json_lines(*({"text": each} for each in (*texts, long, *texts)))), tmp_path
    )
    assert (cut[:50], cut[-50:]) == (texts, texts)
    assert "".join(cut[50:-50]) == long
    assert all(len(document) <= LONGEST for document in cut)
    assert (verdict.rows, verdict.repeats, codes_of(verdict)) == (101, 50, ["E437"])


class TestFields:
    @pytest.mark.parametrize(
        ("rows", "field"),
        [
            ([{"title": "aa", "content": "bb", "text": "cc"}], "text"),
            ([{"title": "a longer one", "content": "bb"}], "content"),
            ([{"title": "short", "body": "the one with most letters"}], "body"),
            ([{"text": 5, "body": "a text that is a number is none"}], "body"),
            ([{"text": "", "body": "an empty text is none either"}], "body"),
            ([{"text": "N/A", "body": "a text of three letters is not the text of " + "the rows " * 9}], "body"),
            ([{"url": "http://x.y/" * 9, "body": "addresses have no words, but this has"}], "body"),
            ([{"doc": {"de": "kurz", "en": "a nested field with more text"}}], "doc.en"),
            ([{"lines": ["a list of", "several texts"]}], "lines"),
            ([{"parts": [{"say": "a list"}, {"say": "of objects"}]}], "parts.say"),
            ([{"id": "1" * 30}] * 1500 + [{"id": "1" * 30, "text": "A text that comes late."}] * 1500, "text"),
        ],
    )
    @pytest.mark.parametrize("kind", ["json", "parquet"])
    def test_the_usual_one_or_that_with_most_text(
        self, tmp_path: Path, rows: list[dict[str, Any]], field: str, kind: str
    ) -> None:
        content = json_lines(*rows) if kind == "json" else table([{**dict.fromkeys(rows[-1]), **row} for row in rows])
        assert read(put(tmp_path, "a", content), tmp_path)[1].field == field

    def test_all_fields_are_told_with_an_example(self, tmp_path: Path) -> None:
        rows = [{"question": passage(n, 10), "answer": passage(n + 100, 60)} for n in range(5)]
        _, verdict = read(put(tmp_path, "a.jsonl", json_lines(*rows)), tmp_path)
        assert [(field.name, field.rows) for field in verdict.fields] == [("answer", 5), ("question", 5)]
        assert verdict.fields[1].example == passage(0, 10)
        assert verdict.fields[1].characters == sum(len(row["question"]) for row in rows)
        assert codes_of(verdict) == ["E429"], "another field has many words too"

    def test_the_organizer_may_choose_one(self, tmp_path: Path) -> None:
        rows = [{"text": "One text.", "doc": {"note": "Another text."}}] * 3
        path = put(tmp_path, "a.jsonl", json_lines(*rows))
        assert read(path, tmp_path, "doc.note")[0] == ["Another text."] * 3
        with pytest.raises(Problem, match=r"E430.*nothing.*text, doc\.note|E430.*nothing.*doc\.note, text"):
            read(path, tmp_path, "nothing")

    @pytest.mark.parametrize("rows", [[{"id": 1}], [{"text": " "}], [{"text": "a"}], [{"text": [1, 2]}]])
    @pytest.mark.parametrize("kind", ["json", "parquet"])
    def test_rows_without_any_text_are_refused(self, tmp_path: Path, rows: list[dict[str, Any]], kind: str) -> None:
        with pytest.raises(Problem, match="E382"):
            read(put(tmp_path, "a", json_lines(*rows) if kind == "json" else table(rows)), tmp_path)

    def test_many_rows_left_out_are_told(self, tmp_path: Path) -> None:
        rows = [*({"text": text} for text in passages(7)), {"text": ""}, {"text": None}, {"id": 3}]
        _, verdict = read(put(tmp_path, "a.jsonl", json_lines(*rows)), tmp_path)
        assert verdict.left_out == {"without text": 3}
        assert verdict.examples["without text"][-1] == "row 10: {}"
        assert codes_of(verdict) == ["E438"]


class TestSeveralFiles:
    def test_no_text_continues_in_the_next_file(self, tmp_path: Path) -> None:
        folder = filled(tmp_path, {"00001": b"\xef\xbb\xbfclap?", "00000": b"What has hands"})
        documents, verdict = read(folder, tmp_path)
        assert documents == ["What has hands", "clap?"]
        assert verdict.format == "plain text, 2 files"
        assert not (tmp_path / "rows").exists()

    def test_rows_of_all_files_have_one_field(self, tmp_path: Path) -> None:
        first = b'{"text": "Many hands", "note": "x"}\n'
        folder = filled(tmp_path, {"00000": first, "00001": b'{"text": "make light work"}\n{"note": "y"}\n'})
        documents, verdict = read(folder, tmp_path)
        assert documents == ["Many hands", "make light work"]
        assert (verdict.field, verdict.rows, verdict.left_out) == ("text", 3, {"without text": 1})

    @pytest.mark.parametrize("files", [{}, {"00000": b""}, {"00000": b"", "00001": b""}])
    def test_a_folder_without_a_letter_is_refused(self, tmp_path: Path, files: dict[str, bytes]) -> None:
        with pytest.raises(Problem, match="E303"):
            read(filled(tmp_path, files), tmp_path)

    def test_damage_in_any_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(Problem, match="E302"):
            read(filled(tmp_path, {"00000": b"Many", "00001": "é".encode() * 20 + b"\xff"}), tmp_path)

    def test_what_is_not_opened_is_left_out_of_an_archive(self, tmp_path: Path) -> None:
        files = {"a.txt": b"Many hands", "b.bin": bytes(range(32)) * 9, "c.pdf.gz": gzip.compress(b"%PDF-1.7", mtime=0)}
        documents, verdict = read(put(tmp_path, "a.zip", zipped(files)), tmp_path)
        assert documents == ["Many hands"]
        assert verdict.left_out == {"not opened": 2}


class TestPartsSetAside:
    def opened(self, folder: Path, names: list[str]) -> tuple[list[str], list[str] | None, Any]:
        content = zipped({name: name.encode() + b" has words." for name in names})
        with open_texts(Source(put(folder, "a.zip", content), "a.zip"), folder / "rows") as opened:
            held = opened.heldout
            return (
                [opened.documents[number] for number in range(len(opened.documents))],
                None if held is None else [held[number] for number in range(len(held))],
                opened.verdict,
            )

    def test_a_part_for_validation_is_held_out(self, tmp_path: Path) -> None:
        trained, held, verdict = self.opened(tmp_path, ["train/a.txt", "val/b.txt", "test/c.txt", "d.txt"])
        assert trained == ["train/a.txt has words.", "d.txt has words."]
        assert held == ["val/b.txt has words."]
        assert (verdict.heldout, codes_of(verdict)) == ("validation", ["E435"])
        assert verdict.left_out == {"set aside as a test": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]

    def test_a_part_for_tests_is_held_out_if_it_is_alone(self, tmp_path: Path) -> None:
        trained, held, verdict = self.opened(tmp_path, ["train.txt", "test.txt"])
        assert (trained, held) == (["train.txt has words."], ["test.txt has words."])
        assert verdict.heldout == "test"

    def test_without_a_part_for_training_all_is_trained_on(self, tmp_path: Path) -> None:
        trained, held, verdict = self.opened(tmp_path, ["test.txt", "more.txt"])
        assert (len(trained), held, verdict.heldout) == (2, None, "")


def test_texts_larger_than_their_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNPACKED_LEAST", 1000)
    monkeypatch.setattr(module, "UNPACKED_TIMES", 1)
    content = table([{"text": "many hands " * 200}] * 50)
    with pytest.raises(Problem, match="E395"):
        read(put(tmp_path, "a.parquet", content), tmp_path)
