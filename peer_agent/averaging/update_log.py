"""The update log on a relay's disk: its runs' signed records, the spans in these records, and tentative spans.

    <run>/records/00000007.json               record 7: head, signature and contributions, one line each
    <run>/spans/00000007-3.span               span 3 of record 7
    <run>/tentative/6-2-1-3-<root>.span       step 6, fence 2, attempt 1, span 3: averaged, but not yet in a record
    <run>/lost/00000007-2.json                record 7 of the host with fence 2, replaced by a newer branch of the log

Every file is either complete or absent. A record is written before its spans are moved. Opening the log completes any
interrupted move. Records are kept forever; their spans are deleted once a verified snapshot covers them (rule 20).
"""

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple, Self

from msgspec import Struct
from msgspec.structs import astuple

from peer_agent.averaging.assembly import leaves_of_span, spans_match
from peer_agent.averaging.reducer import ClosedSpan
from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.merkle import LEAF, Leaf, pack_leaves, unpack_leaves
from peer_agent.protocol.log.records import (
    GENESIS,
    Entry,
    RecordHead,
    SpanEntry,
    digest_of,
    from_lines,
    open_head,
    open_record,
    to_lines,
)

# The format of a span file: MAGIC, the number of chunks (uint32, big-endian), a 40-byte leaf per chunk, the size of
# each payload (uint32), then the payloads.

MAGIC = b"MHSPAN1\n"
HEAD = struct.Struct(">8sI")
TEMPORARY = ".tmp"


class SpanFile(Struct, frozen=True, eq=False):
    """The contents of a span file. The payloads are memory-mapped, so the disk is read only when they are used."""

    leaves: tuple[Leaf, ...]
    payloads: tuple[memoryview, ...]


def write_span(path: Path, leaves: Sequence[Leaf], payloads: Sequence[bytes | memoryview]) -> None:
    """Write a span so that it survives a power failure. Raises Problem E106 if the disk fails."""
    if len(leaves) != len(payloads):
        raise ValueError(f"{len(leaves)} leaves for {len(payloads)} chunks")
    sizes = struct.pack(f">{len(payloads)}I", *map(len, payloads))
    write_durably(path, [HEAD.pack(MAGIC, len(payloads)), pack_leaves(leaves), sizes, *payloads])


def read_span(path: Path) -> SpanFile | None:
    """Read a span file. Return None if it is missing or incomplete.

    The caller must compare the payloads with the leaves.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return parse_span(data)
    except (FileNotFoundError, ValueError, struct.error):
        return None


def parse_span(data: memoryview) -> SpanFile:
    """Return the contents of a span file. Raises ValueError or struct.error if it is not a whole span file."""
    magic, count = HEAD.unpack_from(data)
    sizes_at = HEAD.size + count * LEAF.size
    sizes = struct.unpack_from(f">{count}I", data, sizes_at)
    ends = list(accumulate(sizes, initial=sizes_at + 4 * count))
    if magic != MAGIC or ends[-1] != len(data):
        raise ValueError("not a whole span")
    leaves = unpack_leaves(bytes(data[HEAD.size : sizes_at]))
    return SpanFile(tuple(leaves), tuple(data[start:end] for start, end in pairwise(ends)))


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically and make sure that it survives a power failure. Raises Problem E106 if the disk fails."""
    with disk_errors(path):
        _write_and_rename(path, parts)


def _write_and_rename(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    # Each writer uses its own temporary name, because two of them may be fetching the same span.
    descriptor, name = mkstemp(dir=path.parent, prefix=path.name, suffix=TEMPORARY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
        sync_folder(path.parent)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that the names of its files survive a power failure."""
    if os.name == "nt":
        return  # Windows cannot open folders, and NTFS journals file names
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


RUN = re.compile("[0-9a-f]{32}")
FOLDERS = ("records", "spans", "tentative")
PAGE, PAGE_BYTES = 64, 1024 * 1024  # limits on a page of records for the site


class Forked(Problem):
    """E402: a record belongs to a newer branch, which diverged from the log on this disk at an earlier entry."""


class Head(Struct, frozen=True):
    """The index and digest of the latest record on this disk. Indexes start at 1; 0 means no record."""

    index: int = 0
    digest: str = GENESIS


class Held(Struct, frozen=True):
    """The fields in the name of a tentative span's file."""

    step: int
    fence: int
    attempt: int
    span: int
    root: str

    @property
    def name(self) -> str:
        return "-".join(map(str, astuple(self))) + ".span"

    @classmethod
    def of(cls, path: Path) -> Self:
        step, fence, attempt, span, root = path.stem.split("-")
        return cls(int(step), int(fence), int(attempt), int(span), root)


class StoredSpan(Struct, frozen=True, eq=False):
    """A record's span on this disk. The payloads are memory-mapped, so the disk is read only when they are used."""

    entry: SpanEntry
    leaves: tuple[Leaf, ...]
    payloads: tuple[memoryview, ...]


class LostPage(NamedTuple):
    """Records of replaced branches, oldest first, and their files."""

    paths: tuple[Path, ...]
    records: tuple[Entry, ...]


def _page_of(found: list[Entry]) -> tuple[Entry, ...]:
    """Return the first of these entries, up to PAGE_BYTES in all, or the first alone if it is larger."""
    sizes = accumulate(len(entry.head.payload) + len(entry.contributions) for entry in found)
    return tuple(entry for entry, size in zip(found, sizes, strict=True) if size <= PAGE_BYTES or entry is found[0])


class UpdateLog:
    """The update logs of all runs under one folder. Only one process may open the folder, with one writer per run."""

    def __init__(self, folder: Path, site_key: bytes, keep_bytes: int = 0) -> None:
        """Open the folder and repair anything left unfinished by a crash.

        `keep_bytes`: how many bytes of each run's spans `forget` keeps.
        """
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._site_key = site_key
        self._heads: dict[RunId, Head] = {}
        for path in folder.iterdir() if folder.exists() else ():
            if RUN.fullmatch(path.name):
                self._recover(RunId(path.name))

    # --- spans not yet in a record ---

    def hold(self, run: RunId, step: int, fence: int, attempt: int, span: ClosedSpan) -> None:
        """Write an averaged span to disk, before the relay reports it to the coordinator.

        Raises Problem E106 if the disk fails.
        """
        self._prepare(run)
        held = Held(step, fence, attempt, span.span, span.root.hex())
        write_span(self._at(run, "tentative") / held.name, span.leaves, span.payloads)

    def void(self, run: RunId, step: int, fence: int, attempt: int) -> None:
        """Delete a void round's tentative spans. `attempt` is the round's last attempt."""
        for held, path in self._tentative(run):
            if (held.step, held.fence) == (step, fence) and held.attempt <= attempt:
                path.unlink(missing_ok=True)

    # --- records ---

    def append(self, sealed: Entry) -> bool:
        """Append the next record, and move its spans out of the tentative folder. A repeated record changes nothing.

        A record on a newer branch replaces the record at its index and all later ones (rule 16). Return True if it has
        replaced any. Raises Problem E218 if the signature is wrong, E402 if the record does not continue the log, and
        E106 if the disk fails. Raises Forked if the record's branch began at an earlier index.
        """
        record = open_record(sealed, self._site_key)
        replaces = record.index <= self.last_index(record.run)
        if replaces:
            if self._is_same(record, sealed):
                return False
            self._take_back(record)
        head = self._head(record.run)
        if record.index != head.index + 1:
            raise Problem.of("E402", reason=f"record {record.index} came after record {head.index}")
        if record.previous != head.digest:
            error = Forked if record.fence > self.record(record.run, head.index).fence else Problem
            raise error.of("E402", reason=f"record {record.index} follows another record than {head.index} here")
        self._prepare(record.run)
        write_durably(self._record_path(record.run, record.index), [to_lines(sealed)])
        self._heads[record.run] = Head(record.index, digest_of(sealed))
        self._settle(record)
        return replaces

    def records(self, run: RunId, first: int, limit: int) -> list[Entry]:
        """Return up to `limit` entries, starting at index `first`.

        Raises Problem E402 if an entry is missing or damaged.
        """
        last = min(first + limit - 1, self.last_index(run))
        return [self._sealed(run, index) for index in range(max(first, 1), last + 1)]

    def page(self, run: RunId, first: int) -> tuple[Entry, ...]:
        """Return the entries from index `first` on, limited to PAGE entries and PAGE_BYTES bytes.

        The first entry is returned even if it is larger. Raises Problem E402 if an entry is missing or damaged.
        """
        return _page_of(self.records(run, first, PAGE))

    def lost_page(self, run: RunId) -> LostPage:
        """Return the first records of replaced branches that the site has not been given, limited as a page is."""
        paths = sorted(self._at(run, "lost").glob("*.json"))[:PAGE]
        found: list[Entry] = []
        for place, path in enumerate(paths):
            with suppress(OSError, ValueError):  # a damaged record is left out
                found.append(from_lines(path.read_bytes()))
            if len(_page_of(found)) < len(found):
                return LostPage(tuple(paths[:place]), tuple(found[:-1]))
        return LostPage(tuple(paths), tuple(found))

    def put_aside(self, run: RunId, page: LostPage) -> None:
        """Move records that the site has been given to the folder `told`."""
        told = self._at(run, "told")
        told.mkdir(exist_ok=True)
        for path in page.paths:
            path.replace(told / path.name)

    def record(self, run: RunId, index: int) -> RecordHead:
        """Return the head of one record. Raises Problem E402 if the record is missing or damaged."""
        return open_head(self._sealed(run, index).head, self._site_key)

    def last_index(self, run: RunId) -> int:
        """Return the index of the latest record, or 0 if there is none."""
        return self._head(run).index

    # --- spans in records ---

    def span(self, run: RunId, index: int, span: int) -> StoredSpan | None:
        """Return a record's span, or None if this disk does not have it."""
        if not 1 <= index <= self.last_index(run):
            return None
        entry = _entry(self.record(run, index), span)
        return self._stored(run, index, entry) if entry else None

    def missing(self, run: RunId, index: int) -> list[SpanEntry]:
        """Return the record's spans that this disk lacks. Raises Problem E402 if the record is missing or damaged."""
        return [entry for entry in self.record(run, index).spans if self._stored(run, index, entry) is None]

    def store(self, run: RunId, index: int, span: int, payloads: Sequence[bytes | memoryview]) -> None:
        """Store a span that was fetched from another relay.

        Raises Problem E111 if the bytes are wrong, E402 if the record has no such span, and E106 if the disk fails.
        """
        record = self.record(run, index)
        entry = _entry(record, span)
        if entry is None:
            raise Problem.of("E402", reason=f"record {index} has no span {span}")
        leaves = leaves_of_span(record.codec, Grid(record.elements, record.chunk_elements), entry, payloads)
        if leaves is None:
            raise Problem.of("E111", name=f"span {span} of record {index}", url="another relay")
        write_span(self._span_path(run, index, span), leaves, payloads)

    def forget(self, run: RunId, keep_after: int) -> None:
        """Delete the run's spans up to record `keep_after`, oldest first, until at most `keep_bytes` of spans are left.

        The site needs these spans only if it is restored from a backup that is older than they are.
        """
        paths = sorted(self._at(run, "spans").glob("*.span"))
        size = sum(path.stat().st_size for path in paths) if self._keep_bytes else 0
        for path in paths:
            if (size <= self._keep_bytes and self._keep_bytes) or int(path.stem.split("-")[0]) > keep_after:
                break
            size -= path.stat().st_size
            path.unlink(missing_ok=True)

    # --- private ---

    def _at(self, run: RunId, *names: str) -> Path:
        """Return a path in a run's folder. Raises ValueError if `run`, which came from the network, is invalid."""
        if not RUN.fullmatch(run):
            raise ValueError(f"{run!r} is not a run")
        return self._folder.joinpath(run, *names)

    def _record_path(self, run: RunId, index: int) -> Path:
        return self._at(run, "records", f"{index:08d}.json")

    def _span_path(self, run: RunId, index: int, span: int) -> Path:
        return span_path(self._at(run), index, span)

    def _tentative(self, run: RunId) -> Iterator[tuple[Held, Path]]:
        for path in sorted(self._at(run, "tentative").glob("*.span")):
            yield Held.of(path), path

    def _head(self, run: RunId) -> Head:
        return self._heads.get(run, Head())

    def _prepare(self, run: RunId) -> None:
        if self._at(run, FOLDERS[-1]).is_dir():
            return
        with disk_errors(self._at(run)):
            for name in FOLDERS:
                self._at(run, name).mkdir(parents=True, exist_ok=True)
            for folder in (self._at(run), self._folder):
                sync_folder(folder)

    def _sealed(self, run: RunId, index: int) -> Entry:
        try:
            return from_lines(self._record_path(run, index).read_bytes())
        except (FileNotFoundError, ValueError) as error:
            raise Problem.of("E402", reason=f"record {index} is missing or damaged on this relay") from error

    def _stored(self, run: RunId, index: int, entry: SpanEntry) -> StoredSpan | None:
        file = read_span(self._span_path(run, index, entry.span))
        return StoredSpan(entry, file.leaves, file.payloads) if file and spans_match(entry, file.leaves) else None

    def _is_same(self, record: RecordHead, sealed: Entry) -> bool:
        return record.index >= 1 and digest_of(self._sealed(record.run, record.index)) == digest_of(sealed)

    def _take_back(self, record: RecordHead) -> None:
        """Move the records at and after the given record's index to the folder `lost`, and delete their spans.

        Move the latest record first. Raises Problem E402 if the given record is not from a newer host. Raises Forked if
        its branch began at an earlier index.
        """
        run, index = record.run, record.index
        if index < 1 or record.fence <= self.record(run, index).fence:
            raise Problem.of("E402", reason=f"there are two different records {index}")
        before = digest_of(self._sealed(run, index - 1)) if index > 1 else GENESIS
        if record.previous != before:
            raise Forked.of("E402", reason=f"another branch of the log began before record {index}")
        self._at(run, "lost").mkdir(exist_ok=True)
        for gone in range(self.last_index(run), index - 1, -1):
            kept = self._at(run, "lost", f"{gone:08d}-{self.record(run, gone).fence}.json")
            self._record_path(run, gone).replace(kept)
            self._heads[run] = Head(gone - 1, before if gone == index else "")
            for span in self._at(run, "spans").glob(f"{gone:08d}-*.span"):
                span.unlink(missing_ok=True)

    def _settle(self, record: RecordHead) -> None:
        """Move the tentative spans that the record names to the spans folder. Delete those of earlier steps."""
        named = {(record.step - 1, entry.attempt, entry.span, entry.root) for entry in record.spans}
        for held, path in self._tentative(record.run):
            if (held.step, held.attempt, held.span, held.root) in named:
                path.replace(self._span_path(record.run, record.index, held.span))
            elif held.step < record.step:
                path.unlink(missing_ok=True)
        sync_folder(self._at(record.run, "spans"))

    def _recover(self, run: RunId) -> None:
        self._prepare(run)
        for path in self._at(run).rglob("*" + TEMPORARY):
            path.unlink()
        index = 0
        while self._record_path(run, index + 1).exists():
            index += 1
        if record := self._newest_whole(run, index):
            self._heads[run] = Head(record.index, digest_of(self._sealed(run, record.index)))
            self._settle(record)

    def _newest_whole(self, run: RunId, index: int) -> RecordHead | None:
        """Return the latest readable record up to `index`.

        Delete later records, which are damaged, so that the relay fetches them again.
        """
        for candidate in range(index, 0, -1):
            try:
                return self.record(run, candidate)
            except Problem:
                self._record_path(run, candidate).unlink()
        return None


def span_path(folder: Path, index: int, span: int) -> Path:
    """Return the path of a span in a run's folder."""
    return folder / "spans" / f"{index:08d}-{span}.span"


def largest_file(sizes: Sequence[int]) -> int:
    """Return the size in bytes of the file for a span whose chunks have these sizes."""
    return HEAD.size + len(sizes) * (LEAF.size + 4) + sum(sizes)


def _entry(record: RecordHead, span: int) -> SpanEntry | None:
    return next((entry for entry in record.spans if entry.span == span), None)
