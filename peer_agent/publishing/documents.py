"""Documents of about 2,000 characters, cut from a text or from rows with texts, and read by number. A source is a
file, or a folder whose files are read in the order of their names. Only the positions of documents are in memory, so
the text may be larger than memory.
"""

import codecs
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.rows import REFUSED, Writer, kind_of, left_out, texts_of

BLOCK = 1 << 20  # bytes read at a time
SHORTEST, LONGEST = 1000, 2400  # characters in a document; the last document may be shorter
LONGEST_CONVERSATION = 1 << 16  # characters; a conversation up to this length stays one document
MARKS = ("\n\n", "\n\r\n", "\n", ". ", " ")  # where to cut, the best place first
# Limit of the text in rows, in bytes: UNPACKED_LEAST plus UNPACKED_TIMES the size of the files.
UNPACKED_LEAST, UNPACKED_TIMES = 64 << 20, 32
FIELD_NAME = 60  # characters of a field's name that are shown
ORDER_KEY = 0x4D616E7968616E64  # a fixed key, so that the same text gives the same shards


class Documents:
    """The documents of one source, read by number. Use it in a `with` statement."""

    def __init__(
        self,
        file: IO[bytes],
        offsets: NDArray[np.int64],
        characters: int,
        *,
        source: Path,
        note: str = "",
        field: str = "",
        are_conversations: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """Map the documents in a file. `offsets`: the start of each document, and the end of the last one. `note`: a
        sentence that describes the rows. `field`: the rows' text field. `scratch`: a file to delete on exit.
        """
        self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._offsets = offsets
        self.characters, self.note, self._scratch = characters, note, scratch
        self.source, self.field, self.are_conversations = source, field, are_conversations

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()
        if self._scratch is not None:
            self._scratch.unlink()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        return self._bytes[self._offsets[number] : self._offsets[number + 1]].decode()

    @property
    def bytes(self) -> int:
        """The total size of all documents."""
        return int(self._offsets[-1] - self._offsets[0])

    def size(self, number: int) -> int:
        return int(self._offsets[number + 1] - self._offsets[number])

    def order(self) -> list[int]:
        """Return the numbers of all documents, shuffled by a fixed key so that neighbouring documents are separated."""
        draws = np.random.Philox(key=ORDER_KEY).random_raw(len(self))
        return [int(number) for number in np.argsort(draws, kind="stable")]


def open_documents(path: Path, scratch: Path, writer: Writer | None = None, *, field: str = "") -> Documents:
    """Check a source and cut it into documents. Each contains text of one row. Only very long conversations are cut.
    Row texts are stored in `scratch`. `writer`: renders conversations. `field`: the text field, if the caller knows it
    and has checked the unpacked size. Raises Problem E302 (not UTF-8), E303 (empty), E395 (too much text), and the
    errors of `rows`.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files:
        raise Problem.of("E303")
    if kind_of(files[0]) != "text":
        return _of_rows(path, files, scratch, writer, field)
    return _of_text(path, files[0]) if len(files) == 1 else _of_texts(path, files, scratch)


def _of_rows(source: Path, files: Sequence[Path], scratch: Path, writer: Writer | None, known: str) -> Documents:
    field, texts, counted, are_conversations = texts_of(files, writer, known)
    longest = LONGEST_CONVERSATION if are_conversations else 0
    offsets, characters = [0], 0
    scratch.parent.mkdir(parents=True, exist_ok=True)
    most = UNPACKED_LEAST + UNPACKED_TIMES * sum(path.stat().st_size for path in files)
    with scratch.open("w+b") as file:
        for text in texts:
            for document in [text] if len(text) <= longest else _documents([text]):
                offsets.append(offsets[-1] + file.write(document.encode()))
                characters += len(document)
            if offsets[-1] > most and not known:
                raise Problem.of("E395", most=f"{most >> 20:,}")
        if not characters and writer is not None and counted[REFUSED]:
            raise Problem.of("E394", reason=writer.refusal)
        if not characters:
            raise Problem.of("E382", rows=f"{counted['rows']:,}")
        file.flush()
        shown = "".join(letter for letter in field if letter.isprintable())[:FIELD_NAME]
        what = "conversations, " if are_conversations else ""
        note = f" They are {what}the field {shown!r} of {counted['rows']:,} rows.{left_out(counted)}"
        about: dict[str, Any] = {"field": field, "are_conversations": are_conversations, "note": note}
        return Documents(file, np.array(offsets, dtype=np.int64), characters, source=source, scratch=scratch, **about)


def _of_texts(source: Path, files: Sequence[Path], scratch: Path) -> Documents:
    """Cut text files into documents. Each document contains text from only one file."""
    offsets, characters = [0], 0
    scratch.parent.mkdir(parents=True, exist_ok=True)
    with scratch.open("w+b") as gathered:
        for path in files:
            with path.open("rb") as file:
                for document in _documents(_checked_text(file, _begin(file))):
                    offsets.append(offsets[-1] + gathered.write(document.encode()))
                    characters += len(document)
        if not characters:
            raise Problem.of("E303")
        gathered.flush()
        return Documents(gathered, np.array(offsets, dtype=np.int64), characters, source=source, scratch=scratch)


def _begin(file: IO[bytes]) -> int:
    begin = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    file.seek(begin)
    return begin


def _of_text(source: Path, path: Path) -> Documents:
    with path.open("rb") as file:
        begin = _begin(file)
        offsets, characters = [begin], 0
        for document in _documents(_checked_text(file, begin)):
            offsets.append(offsets[-1] + len(document.encode()))
            characters += len(document)
        if not characters:
            raise Problem.of("E303")
        return Documents(file, np.array(offsets, dtype=np.int64), characters, source=source)


def _checked_text(file: IO[bytes], position: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        block = file.read(BLOCK)
        begin = position - len(decoder.getstate()[0])  # a character may be split between two blocks
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            byte = f"{error.object[error.start]:02x}"
            raise Problem.of("E302", position=begin + error.start, byte=byte) from error
        if not block:
            return
        position += len(block)
        yield text


def _documents(texts: Iterable[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        rest, start = rest + text, 0
        while len(rest) - start > LONGEST:
            stop = _end_of_document(rest, start)
            yield rest[start:stop]
            start = stop
        rest = rest[start:]
    if rest:
        yield rest


def _end_of_document(text: str, start: int) -> int:
    for mark in MARKS:
        at = text.rfind(mark, start + SHORTEST, start + LONGEST)
        if at >= 0:
            return at + len(mark)
    return start + LONGEST
