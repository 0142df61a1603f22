"""Encodings: recognised and rewritten as UTF-8, or refused with the position of the wrong byte."""

from pathlib import Path

import pytest

from peer_agent.protocol.errors import Problem
from peer_agent.site_work.intake import encoding as module
from peer_agent.site_work.intake.encoding import BLOCK, Look, as_utf8
from peer_agent.site_work.intake.verdict import Verdict
from tests.site_work.intake.made import codes_of, passages, put

TEXT = "\n\n".join(passages(30)).replace("mill", "mühle")


def decoded(content: bytes, folder: Path) -> tuple[str, Verdict]:
    verdict = Verdict()
    path = as_utf8(put(folder, "a.txt", content), "a.txt", folder / "scratch", verdict)
    return path.read_bytes().decode(), verdict


@pytest.mark.parametrize(
    ("encoding", "codes"),
    [
        ("utf-8", []),
        ("utf-8-sig", []),
        ("utf-16", []),
        ("utf-32", []),
        ("utf-16-le", ["E434"]),
        ("utf-16-be", ["E434"]),
        ("latin-1", ["E428"]),
    ],
)
def test_an_encoding_is_recognised(tmp_path: Path, encoding: str, codes: list[str]) -> None:
    found, verdict = decoded(TEXT.encode(encoding), tmp_path)
    assert found == TEXT
    assert codes_of(verdict) == codes
    assert all("windows-1252" in finding.text for finding in verdict.findings if finding.code == "E428")


def test_a_short_text_in_latin_1_keeps_its_accents(tmp_path: Path) -> None:
    found, verdict = decoded("Un café au lait, s'il vous plaît.".encode("latin-1"), tmp_path)
    assert found == "Un café au lait, s'il vous plaît."
    assert codes_of(verdict) == ["E428"]


@pytest.mark.parametrize("block", [7, BLOCK])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_end_of_line_becomes_a_line_feed(
    tmp_path: Path, end: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    text = "语🤝é\n\nA line.\n" * 20
    for encoding in ("utf-8", "utf-16"):
        assert decoded(text.replace("\n", end).encode(encoding), tmp_path)[0] == text


@pytest.mark.parametrize(
    ("content", "position", "byte"),
    [
        ("déjà vu, été ".encode() * 10 + b"\xe9", 170, "e9"),
        ("é".encode() * BLOCK + b"\xc3b", 2 * BLOCK, "c3"),
        ("é".encode() * BLOCK + b"cut short " + b"\xe8\xaa", 2 * BLOCK + 10, "e8"),
        (b"\xff\xfe" + "word".encode("utf-16-le") * BLOCK + b"\x00\xdcx\x00", 8 * BLOCK + 2, "00"),
    ],
    ids=["near", "at a block's end", "cut", "utf-16"],
)
def test_damage_in_unicode_is_refused_by_place(content: bytes, position: int, byte: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=rf"E302.*byte {position:,}: 0x{byte}|E302.*byte {position}: 0x{byte}"):
        decoded(content, tmp_path)


def test_one_late_damaged_byte_does_not_change_the_encoding(tmp_path: Path) -> None:
    content = b"Plain words and more. " * 15_000 + "déjà vu été. ".encode() * 500 + b"\xe9 "
    with pytest.raises(Problem, match="E302"):
        decoded(content, tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"E424.*not a text"):
        decoded(bytes(range(32)) * 50, tmp_path)


def test_control_characters_are_removed_and_told() -> None:
    look, verdict = Look(), Verdict()
    assert look.take("A line.\x00\x00\x1b[0m\tand\fmore\x7f\n" * 30) == "A line.[0m\tand\fmore\n" * 30
    look.tell(verdict)
    assert [(finding.code, finding.severity) for finding in verdict.findings] == [("E431", "question")]
    look, verdict = Look(), Verdict()
    look.take("A line of words. " * 1000 + "\x00")
    look.tell(verdict)
    assert [(finding.code, finding.severity) for finding in verdict.findings] == [("E431", "note")]


@pytest.mark.parametrize(
    ("text", "code"),
    [("Le cafÃ© dâ€™Ã©tÃ©. ", "E432"), ("Lost \ufffd here. ", "E432"), ("<p class='a'>A line.</p> ", "E433")],
)
def test_strange_characters_are_asked_about(text: str, code: str) -> None:
    look, verdict = Look(), Verdict()
    look.take(text * 20)
    look.tell(verdict)
    assert codes_of(verdict) == [code]


def test_ordinary_characters_are_not_asked_about() -> None:
    look, verdict = Look(), Verdict()
    for text in (
        "Ânes et Écoles: déjà vu à Paris.",
        "שלום مرحبا 👩‍👩‍👧‍👦 语言",
        "if a < b and c > d: pass",
        "São Paulo, NÃO.",
    ):
        assert look.take(text * 50) == text * 50
    look.tell(verdict)
    assert verdict.findings == []
