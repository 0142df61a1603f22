"""A tar of folders with images: its members in their order, each with the folder it lies in, bounded as they are read.

What a member says of itself is a claim: names are never made paths, and nothing is unpacked.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, Self

from peer_agent.protocol.errors import Problem

FILE_BYTES = 64 * 1024 * 1024  # of one image, at most
FILES = 20_000_000  # in one archive, at most
LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
LONGEST_NAME = 1024 * 1024  # bytes
HIDDEN = (".", "__MACOSX")  # names that begin so are of a file system, not of people


class Member(NamedTuple):
    """A file of an archive. `folder`: the name of the one it lies in; `content`: empty where the file is too large."""

    folder: str
    name: str
    content: bytes


class Header(tarfile.TarInfo):
    """One whose further headers are as long as names are: they are read whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Raises ReadError."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in LONG and header.size > LONGEST_NAME:
            raise tarfile.ReadError("a name in it is too long")
        return header


def members_of(path: Path) -> Iterator[Member]:
    """All files in folders. Raises Problem E378 for what is no tar or is cut short, E379 for what leads out of it."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|*", tarinfo=Header) as archive:
            yield from _members(archive)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Problem.of("E378", reason=error) from error


def _members(archive: tarfile.TarFile) -> Iterator[Member]:
    for number, entry in enumerate(archive):
        if number >= FILES:
            raise Problem.of("E378", reason=f"it has more than {FILES:,} files")
        archive.members = []  # type: ignore[attr-defined]  # else all headers of a large archive are kept
        if entry.isdir():
            continue
        if not entry.isfile() or _leads_out(entry.name):
            raise Problem.of("E379", name=_shown(entry.name))
        path = PurePosixPath(entry.name)
        folder = path.parent.name
        if folder and not any(part.startswith(HIDDEN) for part in (folder, path.name)):
            yield Member(folder, path.name, _content(archive.extractfile(entry), entry.size))


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def _shown(name: str) -> str:
    return "".join(letter for letter in name if letter.isprintable())[:100]


def _content(file: IO[bytes] | None, size: int) -> bytes:
    return b"" if file is None or size > FILE_BYTES else file.read()
