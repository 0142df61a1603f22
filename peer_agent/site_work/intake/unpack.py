"""Unpacks compressed files and archives within limits. Names in an archive are untrusted and never become paths."""

import bz2
import gzip
import lzma
import re
import shutil
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Self

import pyarrow as pa

from peer_agent.protocol.errors import Problem, codes
from peer_agent.site_work.intake.verdict import Verdict, shown

SKIPPABLE = tuple(bytes((low, 0x2A, 0x4D, 0x18)) for low in range(0x50, 0x60))  # zstd's skippable frames
GZIP, ZSTD, BZIP2, XZ, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", (b"PK\x03\x04", b"PK\x05\x06")
PACKERS = {GZIP: "gzip", ZSTD: "zstd", BZIP2: "bzip2", XZ: "xz", **dict.fromkeys(SKIPPABLE, "zstd")}
# Unsupported formats by their first bytes: what the file is, and what to do instead.
CLOSED = {
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "Unpack it, and pack the files as a zip"),
    b"Rar!\x1a\x07": ("a RAR archive", "Unpack it, and pack the files as a zip"),
    b"%PDF": ("a PDF", "Export its text, as pdftotext does"),
    b"{\\rtf": ("an RTF document", "Save it as plain text (.txt)"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old Office document", "Save it as plain text (.txt), or a sheet as CSV"),
    b"SQLite format 3\x00": ("an SQLite database", "Export the table as CSV"),
    b"\x93NUMPY": ("a NumPy array", "Save texts as JSON Lines, or images as PNG files in folders"),
    b"ORC": ("an ORC file", "Save it as Parquet"),
    b"\x80\x04\x95": ("a pickle", "Save the rows as JSON Lines or Parquet"),
    b"\x80\x02}": ("a pickle", "Save the rows as JSON Lines or Parquet"),
}
# Kinds of documents that are zip files, recognized by a member that only they have.
OFFICE = {
    "word/document.xml": ("a Word document", "Save it as plain text (.txt)"),
    "xl/workbook.xml": ("an Excel workbook", "Save the sheet as CSV"),
    "xl/workbook.bin": ("an Excel workbook", "Save the sheet as CSV"),
    "ppt/presentation.xml": ("a PowerPoint file", "Export its text"),
    "content.xml": ("an OpenDocument file", "Save it as plain text (.txt), or a sheet as CSV"),
    "META-INF/container.xml": ("an e-book (EPUB)", "Save it as plain text (.txt)"),
}
TAR_MAGIC, TAR_AT = b"ustar", 257
BEGIN = TAR_AT + len(TAR_MAGIC)
UTF8_FLAG, ENCRYPTED = 0x800, 0x1  # bits in a zip entry
LAYERS = 3  # most nested layers of compression and archives
FILES = 20_000_000  # most files in an archive
LONG = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
LONGEST_NAME = 1 << 20  # in bytes
HIDDEN = (".", "__MACOSX", "@eaDir")  # names with these prefixes are created by file systems, not by people
BYSTANDERS = ("thumbs.db", "desktop.ini")
BLOCK = 1 << 20
UNPACKED_LEAST, UNPACKED_TIMES = 64 << 20, 32  # limit on unpacked bytes: the first plus the second times the file size
BROKEN = (
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    pa.ArrowException,
)
EMPTY_WORDS = ("of", "part", "set", "split", "shard", "data", "txt", "jsonl", "json", "csv", "tsv", "parquet")
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "development", "eval"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Member(NamedTuple):
    """A file, alone or in an archive.

    `name`: its full path. `file` can be read until the next member is yielded. `is_packed`: True if the file was in an
    archive or compressed.
    """

    name: str
    file: IO[bytes]
    is_packed: bool = True


class Header(tarfile.TarInfo):
    """A tar header that limits the size of extension headers, because tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header. Raises ReadError if it is damaged or announces a name that is too long."""
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if any(buf):  # otherwise, tarfile would stop as if the archive had ended
                raise tarfile.ReadError(str(error)) from error
            raise
        if header.type in LONG and header.size > LONGEST_NAME:
            raise tarfile.ReadError("a name in it is too long")
        return header

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next header, and record in `archive` whether the last block was an archive's end mark."""
        try:
            header = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            archive.has_ended = True  # type: ignore[attr-defined]
            raise
        archive.has_ended = False  # type: ignore[attr-defined]
        return header


class Unpacking:
    """The state of unpacking one file: its verdict, a scratch folder, and the number of bytes unpacked so far.

    `take` raises Problem E395 above the limit.
    """

    def __init__(self, size: int, verdict: Verdict, scratch: Path) -> None:
        self.verdict, self.scratch = verdict, scratch
        self.most, self.taken = UNPACKED_LEAST + UNPACKED_TIMES * size, 0

    def take(self, count: int) -> None:
        self.taken += count
        if self.taken > self.most:
            raise Problem.of("E395", most=f"{self.most >> 20:,}")


def members_of(path: Path, name: str, verdict: Verdict, scratch: Path) -> Iterator[Member]:
    """Yield a file or, if it is an archive or a folder, the files in it, unpacking at most `LAYERS` nested layers.

    Links and unsupported files inside an archive or folder are left out. `scratch`: a folder for unpacked files. Raises
    Problem E378 if the file cannot be unpacked, or E395 if it is too large when unpacked. Raises E424 if its format is
    not supported, or E425 if a name in it is unreadable.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    files = _files_in(path) if path.is_dir() else iter([(path, name)])
    try:
        for file, name in files:  # noqa: PLR1704 (in a folder, each file has its own name)
            try:
                yield from _opened(file, name, Unpacking(file.stat().st_size, verdict, scratch), LAYERS)
            except Problem as problem:
                if not path.is_dir() or problem.fault.code != codes.NOT_OPENED:
                    raise
                verdict.leave_out("not opened", f"{name}: {problem.fault.cause}")
    except BROKEN as error:
        raise _not_unpacked(name, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _not_unpacked(name: str, error: BaseException) -> Problem:
    return Problem.of("E378", name=shown(name), reason=shown(str(error)) or type(error).__name__)


def _files_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each visible file under a folder with its path relative to that folder, sorted by path."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not is_hidden(name := path.relative_to(folder).as_posix()):
            yield path, name


def split_of(name: str) -> str:
    """Return the split, such as `train`, in the name of a file or of one of its folders, or "" if there is none.

    An example of such a name is `imdb-train-00000-of-00001`.
    """
    *folders, file = PurePosixPath(name).parts or ("",)
    stem = file.partition(".")[0] if "." not in file.strip(".") else file.rpartition(".")[0]
    return next(filter(None, map(split_in, [*folders, stem])), "")


def split_in(words: str) -> str:
    """Return the split stated by a name without suffix: `train`, `validation`, `test` or an empty string.

    The word for the split comes last, as in `imdb_train`, or is followed only by filler words, as in `test_set`.
    """
    tokens = [word for word in re.findall(r"[^\W\d_]+", words.lower()) if word not in EMPTY_WORDS]
    return SPLITS.get(tokens[-1], "") if tokens else ""


def parts_of(names: Sequence[str], verdict: Verdict) -> list[str]:
    """Return the split of each of a run's sources, judging by their file names.

    Return empty strings unless one source is for training and another is set aside. Ask the organizer to check if
    sources are set aside but none is for training. Ignore the names of repositories on the Hub.
    """
    splits = [split_of(name) if "/" not in name else "" for name in names]
    aside = next((name for name, split in zip(names, splits, strict=True) if split not in ("", "train")), "")
    if aside and "train" in splits:
        return splits
    if aside and len(names) > 1:
        verdict.ask("E446", name=shown(aside))
    return [""] * len(names)


def _opened(path: Path, name: str, unpacking: Unpacking, layers: int, within: str = "") -> Iterator[Member]:
    with path.open("rb") as file:
        begin = file.read(TAR_AT + len(TAR_MAGIC))
        file.seek(0)
        packer = next((packer for magic, packer in PACKERS.items() if begin.startswith(magic)), None)
        if packer is not None and layers:
            inside = unpacking.scratch / str(layers)
            with inside.open("wb") as unpacked, pa.PythonFile(file, mode="r") as packed:
                _copy(_reader(packed, file, packer), unpacked, unpacking)
            plain = name.removesuffix(PurePosixPath(name).suffix) or name
            yield from _opened(inside, plain, unpacking, layers - 1, within)
            inside.unlink()
        elif begin.startswith(ZIP):
            yield from _inside(_zipped(file, name, unpacking.verdict), unpacking, layers, within)
        elif begin[TAR_AT:] == TAR_MAGIC or name.lower().endswith(".tar"):
            yield from _inside(_tarred(file, name, unpacking.verdict), unpacking, layers, within)
        else:
            _require_open(begin, name)
            yield Member(name, file, layers < LAYERS)


def _reader(packed: pa.PythonFile, file: IO[bytes], packer: str) -> Any:
    if packer == "zstd":
        return pa.CompressedInputStream(packed, "zstd")
    if packer == "gzip":
        return gzip.GzipFile(fileobj=file)
    return bz2.BZ2File(file) if packer == "bzip2" else lzma.LZMAFile(file)


def _copy(source: IO[bytes], target: IO[bytes], unpacking: Unpacking) -> None:
    while block := source.read(BLOCK):
        unpacking.take(len(block))
        target.write(block)


def _require_open(begin: bytes, name: str) -> None:
    if (closed := _closed(begin)) is not None:
        raise Problem.of("E424", name=shown(name), what=closed[0], advice=closed[1])


def _closed(begin: bytes) -> tuple[str, str] | None:
    """If a file's format is unsupported, return what it is and what to do instead. Otherwise, return None."""
    return next((what for magic, what in CLOSED.items() if begin.startswith(magic)), None)


def _stem(name: str) -> str:
    stem = name.removesuffix(PurePosixPath(name).suffix)
    return stem.removesuffix(".tar") or name


def _inside(members: Iterator[Member], unpacking: Unpacking, layers: int, within: str) -> Iterator[Member]:
    """Yield an archive's members. In place of a member that is itself an archive, yield that archive's members."""
    for inner_name, file, _ in members:
        name, begin = within + inner_name, file.read(BEGIN)
        is_packed = begin.startswith((*PACKERS, *ZIP)) or begin[TAR_AT : TAR_AT + len(TAR_MAGIC)] == TAR_MAGIC
        if not is_packed or not layers:
            unpacking.take(len(begin))
            if (closed := _closed(begin)) is not None:
                unpacking.verdict.leave_out("not opened", f"{name}: {closed[0]}")
                continue
            yield Member(name, _Begun(name, begin, file, unpacking))  # type: ignore[arg-type]
            continue
        inner = unpacking.scratch / f"inside-{layers}"
        with inner.open("wb") as unpacked:
            unpacked.write(begin)
            _copy(file, unpacked, unpacking)
        try:
            yield from _opened(inner, name, unpacking, layers - 1, f"{_stem(name)}/")
        except (Problem, *BROKEN) as error:
            if isinstance(error, Problem) and error.fault.code != codes.NOT_OPENED:
                raise
            unpacking.verdict.leave_out("not opened", f"{name}: {error}")
        inner.unlink(missing_ok=True)


class _Begun:
    """A file whose first bytes, `begin`, have already been read. Counts the bytes read after them."""

    def __init__(self, name: str, begin: bytes, file: IO[bytes], unpacking: Unpacking) -> None:
        self._name, self._begin, self._file, self._unpacking = name, begin, file, unpacking

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or all remaining bytes if `size` is negative."""
        begin = self._begin if size < 0 else self._begin[:size]
        self._begin = self._begin[len(begin) :]
        if 0 <= size <= len(begin):
            return begin
        try:
            further = self._file.read(size - len(begin) if size >= 0 else -1)
        except BROKEN as error:
            raise _not_unpacked(self._name, error) from error
        self._unpacking.take(len(further))
        return begin + further


def _tarred(file: IO[bytes], name: str, verdict: Verdict) -> Iterator[Member]:
    # An end mark may be followed by another archive, because people join archives with `cat`.
    options: Any = {"tarinfo": Header, "errors": "surrogateescape", "ignore_zeros": True}
    number = 0
    with tarfile.open(fileobj=file, mode="r|", **options) as archive:
        for number, entry in enumerate(archive, 1):
            if number > FILES:
                raise tarfile.ReadError(f"it has more than {FILES:,} files")
            archive.members = []  # type: ignore[attr-defined] # else tarfile keeps all headers of a large archive
            inner = _name_of(entry.name.encode(errors="surrogateescape"), verdict)
            if entry.isdir() or is_hidden(inner):
                continue
            content = archive.extractfile(entry) if entry.isfile() else None
            if content is None:
                verdict.leave_out("links and devices", inner)
            else:
                yield Member(inner, content)
        if not archive.has_ended:  # type: ignore[attr-defined]
            verdict.ask("E463", name=shown(name), what=f"ends without tar's end mark, after {number:,} entries")


def _zipped(file: IO[bytes], name: str, verdict: Verdict) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if min((entry.header_offset for entry in entries), default=0):
            verdict.ask("E463", name=shown(name), what="begins with something else, such as another archive")
        for inside, (what, advice) in OFFICE.items():
            if any(entry.filename == inside for entry in entries):
                raise Problem.of("E424", name=shown(name), what=what, advice=advice)
        for entry in entries:
            is_unicode = entry.flag_bits & UTF8_FLAG
            inner = unicodedata.normalize("NFC", entry.filename) if is_unicode else _name_of(_raw(entry), verdict)
            inner = inner.replace("\\", "/")
            if inner.endswith("/") or is_hidden(inner):
                continue
            if entry.flag_bits & ENCRYPTED:
                raise Problem.of("E424", name=shown(name), what="locked with a password", advice="Pack it without one")
            with archive.open(entry) as content:
                yield Member(inner, content)


def _raw(entry: zipfile.ZipInfo) -> bytes:
    return entry.filename.encode("cp437")  # the encoding that zipfile assumes for names without the UTF-8 flag


def is_hidden(name: str) -> bool:
    """Return True for files created by file systems, and for all files in folders such as `.git`."""
    parts = PurePosixPath(name).parts or (".",)
    return parts[-1].lower() in BYSTANDERS or any(part.startswith(HIDDEN) and part not in (".", "..") for part in parts)


def _name_of(raw: bytes, verdict: Verdict) -> str:
    """Return a name in NFC. Read a name that is not UTF-8 as Windows-1252 if its non-ASCII characters are then all
    Latin letters.

    Raises Problem E425 for any other name that is not UTF-8.
    """
    try:
        return unicodedata.normalize("NFC", raw.decode())
    except UnicodeDecodeError:
        guessed = raw.decode("cp1252", "replace")
    if not all(letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in guessed):
        raise Problem.of("E425", name=shown(guessed))
    verdict.ask("E426", name=shown(guessed))
    return guessed
