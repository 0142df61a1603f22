"""Recognizes text in encodings other than UTF-8, rewrites it as UTF-8, and reports characters that are not text."""

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import charset_normalizer

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.rows import CONTROL
from peer_agent.site_work.intake.verdict import Verdict, shown

BLOCK = 1 << 20
SAMPLE = 1 << 18  # how many bytes are read to recognize the encoding
MARKS = (  # byte order marks; where one begins with another, the longer one comes first
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f") + b"\x7f"
# A file is not text if more than one in NO_TEXT bytes is a control character. If one in STRANGE characters is
# suspicious, the verdict asks the organizer to check the text.
NO_TEXT, STRANGE = 20, 1000
FOREIGN = re.compile(r"[^\x00-\x7f]{2,}")  # sequences that may show that the text was wrongly decoded
WRONGLY = ("cp1252", "latin-1", "cp1251")  # encodings that UTF-8 is often misread as
MOST_TRIED = 50  # most such sequences tried per document
DAMAGED = "\ufffd"
HTML = re.compile(r"</?[a-z][\w:-]*(?:\s[^<>]*)?/?>|&(?:#\d+|#x[0-9a-f]+|amp|lt|gt|quot|nbsp|apos);", re.IGNORECASE)
PUNCTUATION = set("\u00a0¡¢£¤¥§©ª«¬®°±²³´·¹º»¼½¾¿×÷€‚ƒ„…†‡‰‹‘’“”•–—™›")  # in Windows-1252
# The verdict asks the organizer to check a text with at least FEWEST_ESCAPED escape sequences, if they are at least one
# in ESCAPED characters.
ESCAPED, FEWEST_ESCAPED = 500, 3
# Encodings that write a character as a sequence of ASCII characters. Each has a name, a string contained in every
# sequence, a pattern for the sequences, and the codec that must decode them, if any.
ESCAPES = (
    ("HZ", "~{", re.compile(r"~\{(?:[!-w][!-~])+~\}"), "hz"),
    ("UTF-7", "+", re.compile(r"\+[A-Za-z0-9+/]{3,}-?"), "utf-7"),
    ("ISO-2022", "\x1b$", re.compile(r"\x1b\$[@-C](?:[!-~]{2})+"), ""),
    ("Unicode", "\\u", re.compile(r"(?:\\u[0-9a-fA-F]{4})+"), ""),
    (
        "quoted-printable",
        "=",
        re.compile(r"=(?:3D|20(?=\r?\n)|(?<=[^\n]{50}=)\r?\n|[C-F][0-9A-F](?:=[89AB][0-9A-F])+)"),
        "",
    ),
)
MANY_ACCENTS = 0.15  # share of non-ASCII letters; few languages in Latin script have more
NULS = 0.2  # this share of zero bytes at even or odd positions reveals UTF-16


class Look:
    """Counts the suspicious characters in one source's texts."""

    def __init__(self) -> None:
        self.characters = self.controls = self.damaged = self.twice = self.tags = 0
        self.escapes, self.others = Counter[str](), Counter[str]()  # sequences by encoding, and false matches
        self.example = dict[str, str]()

    def take(self, text: str) -> str:
        """Count a text's suspicious characters. Return the text without control characters."""
        self.characters += len(text)
        self._take_escapes(text)
        if CONTROL.search(text):
            text, count = CONTROL.subn("", text)
            self.controls += count
        self.damaged += text.count(DAMAGED)
        self.twice += _read_twice(text)
        self.tags += len(HTML.findall(text))
        return text

    def _take_escapes(self, text: str) -> None:
        for name, mark, sequences, codec in ESCAPES:
            if mark in text:
                for found in sequences.findall(text):
                    is_one = not codec or _is_in(found, codec)
                    (self.escapes if is_one else self.others)[name] += 1
                    if is_one:
                        self.example.setdefault(name, shown(found, 30))

    def tell(self, verdict: Verdict) -> None:
        """Add a finding to the verdict for each kind of suspicious character that is frequent enough."""
        many = max(1, self.characters // STRANGE)
        if self.controls:
            (verdict.ask if self.controls >= many else verdict.note)("E431", count=f"{self.controls:,}")
        if self.damaged >= max(3, many // 10):
            verdict.ask("E432", count=f"{self.damaged:,}", what="“�”, which stand for lost characters")
        if self.twice >= max(3, many):
            verdict.ask("E432", count=f"{self.twice:,}", what="pairs like “Ã©”, which come from a wrong encoding")
        for name, count in self.escapes.most_common():
            if count >= max(FEWEST_ESCAPED, 10 * self.others[name], self.characters / ESCAPED):
                verdict.ask("E465", count=f"{count:,}", encoding=name, example=self.example[name])
        if self.tags >= max(10, 2 * many):
            verdict.ask("E433", count=f"{self.tags:,}")


def _read_twice(text: str) -> int:
    """Count the places where UTF-8 was decoded as another encoding, as in “Ã©” for “é”."""
    if text.isascii():
        return 0
    return sum(any(map(partial(_is_utf8_as, part), WRONGLY)) for part in FOREIGN.findall(text)[:MOST_TRIED])


def _is_in(escaped: str, codec: str) -> bool:
    """Return True if a sequence decodes to non-ASCII characters: letters, marks, punctuation or symbols."""
    try:
        text = escaped.encode().decode(codec)
    except UnicodeError:
        return False
    return all(not letter.isascii() and unicodedata.category(letter)[0] in "LMPS" for letter in text)


def _is_utf8_as(part: str, encoding: str) -> bool:
    try:
        part.encode(encoding).decode()
    except UnicodeError:
        return False
    return True


def as_utf8(path: Path, name: str, scratch: Path, verdict: Verdict) -> Path:
    """Return the path of a text in UTF-8 with line feeds: the file itself or, if the text had to be converted,
    `scratch`.

    Raises Problem E302 if the encoding is not recognized, or E424 if the file is not text.
    """
    encoding, begin = _encoding_of(path, name, verdict)
    if encoding == "utf-8" and not begin and not _has(path, b"\r"):
        return path
    with path.open("rb") as file, scratch.open("wb") as written:
        file.seek(begin)
        for text in _decoded(file, encoding):
            written.write(text.encode())
    return scratch


def _encoding_of(path: Path, name: str, verdict: Verdict) -> tuple[str, int]:
    """Return a text's encoding, and the length of its byte order mark. Raises the errors of `as_utf8`."""
    with path.open("rb") as file:
        sample = file.read(SAMPLE)
    for mark, encoding in MARKS:
        if sample.startswith(mark):
            return encoding, len(mark)
    if (wide := _wide(sample)) is not None:
        verdict.note("E434", name=shown(name), encoding=wide.upper())
        return wide, 0
    controls = len(sample) - len(sample.translate(None, CONTROLS))
    if controls * NO_TEXT > len(sample):
        if (wide := _wide_of_a_script(sample)) is None:
            raise Problem.of("E424", name=shown(name), what="not a text file", advice="Choose a text file")
        verdict.note("E434", name=shown(name), encoding=wide.upper())
        return wide, 0
    wrong = _first_wrong_byte(path)
    if wrong is None:
        return "utf-8", 0
    position, byte = wrong
    with path.open("rb") as file:
        file.seek(max(0, position - SAMPLE // 2))
        around = file.read(SAMPLE)
    guess = None if _is_mostly_utf8(around) else _guess(around)
    if guess is None:
        raise Problem.of("E302", position=position, byte=f"{byte:02x}")
    verdict.ask("E428", name=shown(name), encoding=guess)
    return guess, 0


def _guess(sample: bytes) -> str | None:
    """Return the likely encoding of text that is not UTF-8. Windows-1252 comes first if it gives Latin letters."""
    text = sample.decode("cp1252", "replace")
    accents = sum(not letter.isascii() for letter in text)
    if accents < MANY_ACCENTS * sum(map(str.isalpha, text)) and _is_latin(text):
        return "windows-1252"
    found = charset_normalizer.from_bytes(sample).best()
    if found is None or found.encoding.startswith("utf"):
        return None
    return found.encoding.replace("_", "-")


def _is_latin(text: str) -> bool:
    others = {letter for letter in text if not letter.isascii()}
    return all(letter in PUNCTUATION or unicodedata.name(letter, "").startswith("LATIN") for letter in others)


def _wide(sample: bytes) -> str | None:
    """Return the UTF-16 encoding of a text without a byte order mark, or None.

    Many zero bytes at even or odd positions show that a text is UTF-16.
    """
    pairs = len(sample) // 2
    if not pairs:
        return None
    even, odd = sample[0::2].count(0) / pairs, sample[1::2].count(0) / pairs
    if odd > NULS and even < odd / 10:
        return "utf-16-le"
    return "utf-16-be" if even > NULS and odd < even / 10 else None


def _wide_of_a_script(sample: bytes) -> str | None:
    """Return the UTF-16 encoding of a text without a byte order mark if most of its letters belong to one script."""
    for encoding in ("utf-16-le", "utf-16-be"):
        letters = sample[: len(sample) & ~1].decode(encoding, "replace")
        scripts = Counter(unicodedata.name(letter, "?").split()[0] for letter in letters if letter.isalpha())
        plain = sum(
            letter.isalnum() or letter.isspace() or unicodedata.category(letter)[0] in "PM" for letter in letters
        )
        if scripts and plain > 0.95 * len(letters) and max(scripts.values()) > 0.7 * sum(scripts.values()):
            return encoding
    return None


def _first_wrong_byte(path: Path) -> tuple[int, int] | None:
    decoder, position = codecs.getincrementaldecoder("utf-8")(), 0
    with path.open("rb") as file:
        while True:
            block = file.read(BLOCK)
            begin = position - len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return begin + error.start, error.object[error.start]
            if not block:
                return None
            position += len(block)


def _is_mostly_utf8(sample: bytes) -> bool:
    """Return True if nearly all non-ASCII characters are UTF-8, so that the few invalid bytes must be damage."""
    text = sample.decode("utf-8", "replace")
    wrong = text.count(DAMAGED)
    right = sum(not letter.isascii() for letter in text) - wrong
    return right > 10 * wrong


def _has(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return any(mark in block for block in iter(lambda: file.read(BLOCK), b""))


def _decoded(file: IO[bytes], encoding: str) -> Iterator[str]:
    """Yield a file's text.

    A carriage return, alone or before a line feed, becomes a line feed. Raises Problem E302 if the file contains bytes
    that are invalid in the encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    newlines = _Newlines()
    while True:
        held = decoder.getstate()[0]
        position = file.tell() - len(held)
        block = file.read(BLOCK)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            byte = f"{error.object[error.start]:02x}"
            raise Problem.of("E302", position=position + error.start, byte=byte) from error
        yield newlines.take(text, is_last=not block)
        if not block:
            return


class _Newlines:
    def __init__(self) -> None:
        self._held = ""

    def take(self, text: str, *, is_last: bool = False) -> str:
        text, self._held = self._held + text, ""
        if text.endswith("\r") and not is_last:
            text, self._held = text[:-1], "\r"
        return text.replace("\r\n", "\n").replace("\r", "\n")
