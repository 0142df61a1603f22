"""Portions of datasets whose texts stay on the Hub. A portion consists of row groups from one of a dataset's files, and
a machine builds a shard from it. The sizes in the file's footer may be false, so the shard's token count is fixed in
advance. A machine cuts or repeats the tokens to match that count, so all machines build the same shard.
"""

import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import save
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem, codes, disk_errors
from peer_agent.publishing.documents import ORDER_KEY, open_column
from peer_agent.publishing.hub_client import PAUSE_S, TRIES, api_of, check_name, in_words, opened
from peer_agent.publishing.row_groups import GROUP_BYTES, Group, Groups, faults_of_this_machine
from peer_agent.publishing.tokenizer import (
    LARGEST,
    content_of,
    encode_documents,
    in_shards,
    shard_tokens,
    write_content,
)
from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.portion import METADATA, MOST_GROUPS, MOST_PARTS, MOST_TOKENS, Cutting, Portion, portion_in
from peer_agent.recipes.text.tokens import Sentences, Tokens

if TYPE_CHECKING:
    from typing_extensions import Buffer

RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class RangeFile(io.RawIOBase):
    """A file in a public dataset on the Hub, read by byte ranges from one commit. `size`: the file's size in bytes, as
    listed by the Hub. `most`: the maximum number of bytes to read in total. `tell`: called with the number of bytes
    received.

    Reading raises Problem E414 if the file has changed or more than `most` bytes are read. It raises E346 if the Hub
    cannot be reached, and E347 if the Hub's response is unexpected. If the Hub does not provide the file, it raises
    E397, E452 or E453.
    """

    def __init__(
        self,
        repository: str,
        commit: str,
        name: str,
        *,
        size: int,
        endpoint: str,
        most: int,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._told = tell
        self.repository, self.commit, self.name, self.endpoint = repository, commit, name, endpoint
        self.size, self.most = size, most
        self._at = self.taken = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: "Buffer", /) -> int:
        """Fill the buffer, or read to the end of the file if that comes first."""
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def read(self, size: int = -1, /) -> bytes:
        """Read `size` bytes, over as many connections as it takes."""
        left = max(0, self.size - self._at)
        wanted = left if size < 0 else min(size, left)
        self.taken += wanted
        if self.taken > self.most:
            raise self._strange(f"more than {self.most:,} bytes are to be read of it")
        found, failed = bytearray(), 0
        while len(found) < wanted:
            had = len(found)
            self._go_on(found, wanted)
            failed = 0 if len(found) > had else failed + 1
            if failed >= TRIES:
                raise Problem.of("E346", endpoint=self.endpoint, reason="it sends no data")
            if failed:
                time.sleep(PAUSE_S)
        self._at += wanted
        return bytes(found)

    def _go_on(self, found: bytearray, wanted: int) -> None:
        import httpx2

        first, last = self._at + len(found), self._at + wanted - 1
        about: dict[str, Any] = {"kind": "dataset", "commit": self.commit, "bytes_": f"{first}-{last}"}
        with in_words(self.endpoint, self.repository, reading="dataset"):
            try:
                with opened(api_of("", self.endpoint), self.repository, self.name, **about) as response:
                    self._require_range(response, first)
                    for block in response.iter_bytes():
                        self._told(len(block))
                        found += block[: wanted - len(found)]
                        if len(found) >= wanted:
                            return
            except httpx2.TransportError:
                if not found:
                    raise
                # The connection ended early. Keep the bytes that have arrived.

    def _require_range(self, response: Any, first: int) -> None:
        said = RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status_code != 206 or said is None or int(said[1]) != first:
            raise self._strange("no part of it can be had")
        if int(said[2]) != self.size:
            raise self._strange(f"it has {int(said[2]):,} bytes and not {self.size:,}")

    def _strange(self, reason: str) -> Problem:
        return Problem.of("E414", repository=self.repository, name=self.name, reason=reason)


LISTING = ".listing"  # suffix of the folder name of a source that stays on the Hub
# If a source would have more than MANY portions, its portions get larger. A run lists at most MOST_PORTIONS.
MANY, MOST_PORTIONS = 10_000, 40_000


class RemoteFile(Struct, frozen=True):
    """A Parquet file in a dataset: its size in bytes, the columns to read, and its row groups in order."""

    name: str
    size: int
    columns: list[str]
    groups: list[Group]


class Listing(Struct, frozen=True):
    """A dataset on the Hub. `sampled`: the row groups whose rows the site has copied, as (file, group) indices."""

    repository: str
    commit: str
    files: list[RemoteFile]
    sampled: list[tuple[int, int]]

    def sampled_bytes(self, column: str) -> int:
        """Return how many unpacked bytes one column has in the sampled row groups."""
        return sum(self.files[file].groups[group].sizes.get(column, 0) for file, group in self.sampled)

    def left_bytes(self, column: str) -> int:
        """Return how many unpacked bytes one column has in the row groups that were not sampled."""
        everything = sum(group.sizes.get(column, 0) for file in self.files for group in file.groups)
        return everything - self.sampled_bytes(column)

    def unread_rows(self, column: str) -> int:
        """Return the number of rows in unreadable row groups, in which the column is missing or too large."""
        return sum(group.rows for file in self.files for group in file.groups if column not in group.sizes)


def listing_of(source: Path) -> Listing | None:
    """Return the listing stored next to a source's folder, or None if no part of the source stays on the Hub."""
    path = source.with_name(source.name + LISTING)
    return msgspec.json.decode(path.read_bytes(), type=Listing) if path.exists() else None


def portions_of(listing: Listing, column: str, found: int, cutting: Cutting) -> list[Portion]:
    """Return portions that cover all row groups not in the sample, shuffled so that adjacent ones are separated.
    `found`: the number of tokens in the sampled row groups, from which the other row groups' numbers are estimated.
    """
    sampled, left = listing.sampled_bytes(column), listing.left_bytes(column)
    if not sampled or not left:
        return []
    per_byte = found / sampled
    most = min(MOST_TOKENS // 2, max(shard_tokens(left), int(per_byte * left / MANY)))
    portions = [*_portions(listing, column, per_byte, most, cutting)]
    draws = np.random.Philox(key=ORDER_KEY).random_raw(len(portions))
    return [portions[number] for number in np.argsort(draws, kind="stable")]


def write_portion(portion: Portion, folder: Path, source: int) -> DataFile:
    content = save({}, metadata={METADATA: msgspec.json.encode(portion).decode()})
    return DataFile(write_content(content, folder), portion.tokens, source)


def _portions(listing: Listing, column: str, per_byte: float, most: int, cutting: Cutting) -> Iterator[Portion]:
    sampled, largest = set(listing.sampled), max(most, LARGEST)
    for number, file in enumerate(listing.files):
        tokens = [
            0 if (number, place) in sampled else int(per_byte * group.sizes.get(column, 0))
            for place, group in enumerate(file.groups)
        ]
        for first, stop in _runs(tokens, most):
            here = sum(tokens[first:stop])
            parts = min(MOST_PARTS, -(-here // largest)) if here > min(2 * largest, MOST_TOKENS) else 1
            for part in range(parts):
                yield Portion(
                    repository=listing.repository,
                    commit=listing.commit,
                    file=file.name,
                    size=file.size,
                    first=first,
                    groups=stop - first,
                    column=column,
                    part=part,
                    parts=parts,
                    tokens=min(here // parts, MOST_TOKENS),
                    cutting=cutting,
                )


def _runs(tokens: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of row groups with about `most` tokens. A row group without tokens ends a range."""
    first = have = 0
    for place, here in enumerate(tokens):
        have += here
        is_full = have >= most or place + 1 - first == MOST_GROUPS
        if here and not is_full:
            continue
        stop = place + 1 if here else place
        if first < stop:
            yield first, stop
        first, have = place + 1, 0
    if first < len(tokens):
        yield first, len(tokens)


def make_shard(portion: Portion, rows: Path, tokenizer: Tokenizer, out: Path) -> None:
    """Write a portion's shard. `rows`: a small Parquet file with the portion's row groups and column."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    scratch = out.with_name(out.name + ".rows")
    laid = None
    try:
        with open_column(rows, portion.column, scratch) as documents:
            order = documents.order()[portion.part :: portion.parts]
            cutting = portion.cutting
            encoded = encode_documents(
                tokenizer, (documents[number] for number in order), sentences=cutting.sentences, end=cutting.end
            )
            laid = next(in_shards(encoded, sys.maxsize), None)
    except Problem as problem:
        if problem.fault.code != codes.NO_TEXT:
            raise
    out.write_bytes(content_of(filled(laid, portion)))


def filled(found: Sentences | None, portion: Portion) -> Sentences:
    """Cut or repeat the tokens to match the portion's count. If there are none, repeat the end token."""
    if found is None or not found.tokens.size:
        end = np.array([portion.cutting.end], dtype=np.uint32)
        laid: Tokens = end.astype(np.uint16) if portion.cutting.end <= np.iinfo(np.uint16).max else end
        found = Sentences(laid, np.zeros(int(portion.cutting.sentences), dtype=np.uint32))
    length = found.tokens.size
    again = np.arange(-(-portion.tokens // length), dtype=np.int64)[:, None] * length
    begin = (again + found.starts.astype(np.int64)).ravel()
    tokens = found.tokens[np.arange(portion.tokens) % length]
    return Sentences(tokens, begin[begin < portion.tokens].astype(np.uint32))


READ_BYTES = 256 << 20 | GROUP_BYTES  # limit on bytes read from the Hub's file: its footer and the row groups


def make_portion(
    file: Path, tokenizer: Path, out: Path, endpoint: str, tell: Callable[[int], None] = lambda _: None
) -> DataFile:
    """Build the shard described by the portion in `file`, and write it to `out`. `tell`: see `RangeFile`.

    Raises Problem E106 if the disk fails, or E416 if this machine lacks memory or a feature. Raises Problem E414 if
    `file` has no portion, or E348 if the portion's repository has an invalid name. Also raises the Problems of
    `RangeFile`.
    """
    portion = portion_in(file)
    if portion is None:
        raise Problem.of("E414", repository="the Hub", name=file.name, reason="it says of nothing where that is")
    check_name(portion.repository)
    rows = out.with_name(out.name + ".parquet")
    try:
        with disk_errors(out), faults_of_this_machine(portion.repository, portion.file):
            _copy_rows(portion, rows, endpoint, tell)
            make_shard(portion, rows, Tokenizer.from_file(str(tokenizer)), out)
    finally:
        rows.unlink(missing_ok=True)
    return DataFile(file.stem, portion.tokens)


def _copy_rows(portion: Portion, rows: Path, endpoint: str, tell: Callable[[int], None]) -> None:
    about: dict[str, Any] = {"size": portion.size, "endpoint": endpoint, "most": READ_BYTES, "tell": tell}
    with RangeFile(portion.repository, portion.commit, portion.file, **about) as remote:
        try:
            groups = Groups(cast("io.BytesIO", remote))
        except Problem as problem:  # the site could read the file, so the Hub is now sending different bytes
            if problem.fault.code != codes.NOT_PARQUET:
                raise
            said = {"repository": portion.repository, "name": portion.file, "reason": "it is no Parquet file"}
            raise Problem.of("E414", **said) from problem
        groups.copy(range(portion.first, portion.first + portion.groups), [portion.column], rows)
