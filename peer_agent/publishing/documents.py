"""Documents of about 2,000 characters, cut from a text or from rows of texts, and read by number. A source is a file,
or a folder whose files are read in order of name. Only the documents' positions are held in memory, so the text may be
larger than memory.
"""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.errors import Problem
from peer_agent.publishing.rows import texts_of

SHORTEST, LONGEST = 1000, 2400  # characters in a document; the last one may be shorter
LONGEST_CONVERSATION = 1 << 16  # in characters; conversations up to this length stay one document
MARKS = ("\n\n", "\n\r\n", "\n", ". ", " ")  # where to cut a text, best place first
ORDER_KEY = 0x4D616E7968616E64  # a fixed key, so that the same text gives the same shards


class Documents:
    """One source's documents, read by number. Use it in a `with` statement."""

    def __init__(
        self,
        file: IO[bytes],
        offsets: NDArray[np.int64],
        characters: int,
        *,
        field: str = "",
        are_conversations: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """Map the documents in a file. `offsets`: the start of each document, and the end of the last one. `field`: the
        rows' text field. `scratch`: a file to delete on exit.
        """
        self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._offsets = offsets
        self.characters, self._scratch = characters, scratch
        self.field, self.are_conversations = field, are_conversations

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the documents, and delete the scratch file."""
        self._bytes.close()
        if self._scratch is not None:
            self._scratch.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> str:
        return self._bytes[self._offsets[number] : self._offsets[number + 1]].decode()

    @property
    def bytes(self) -> int:
        """The documents' total size."""
        return int(self._offsets[-1] - self._offsets[0])

    def size(self, number: int) -> int:
        return int(self._offsets[number + 1] - self._offsets[number])

    def order(self) -> list[int]:
        """Return the numbers of all documents, shuffled with a fixed key so that adjacent documents are separated."""
        draws = np.random.Philox(key=ORDER_KEY).random_raw(len(self))
        return [int(number) for number in np.argsort(draws, kind="stable")]


def open_column(rows: Path, column: str, scratch: Path) -> Documents:
    """Cut the texts in a Parquet file's column into documents, stored in `scratch`. Skip rows that cannot be read.

    The caller must have checked the unpacked size. Raises Problem E381 if the file is not Parquet, or E382 if it has no
    text.
    """
    offsets, characters = [0], 0
    scratch.parent.mkdir(parents=True, exist_ok=True)
    with scratch.open("w+b") as file:
        for text in texts_of(rows, column):
            for document in cut_documents([text]):
                offsets.append(offsets[-1] + file.write(document.encode()))
                characters += len(document)
        if not characters:
            raise Problem.of("E382", rows="the rows", fields=column)
        file.flush()
        return Documents(file, np.array(offsets, dtype=np.int64), characters, field=column, scratch=scratch)


def cut_documents(texts: Iterable[str]) -> Iterator[str]:
    """Cut a text, given in pieces, into documents of up to `LONGEST` characters."""
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
