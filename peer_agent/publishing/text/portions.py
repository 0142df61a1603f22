"""Texts that stay on the Hub. A portion is some row groups of a file there, which a machine makes a shard of itself.

What is known of a portion beforehand is a claim of the file's footer, so how many tokens its shard has is stated, not
found: what the rows give is cut there, or begun again. So everybody has the same shard, and nobody counts for others.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from safetensors.numpy import save
from tokenizers import Tokenizer

from peer_agent.protocol.errors import Problem, codes
from peer_agent.publishing.content import write_content
from peer_agent.publishing.text.documents import ORDER_KEY, open_documents
from peer_agent.publishing.text.row_groups import Group
from peer_agent.publishing.text.shards import LARGEST, content_of, in_shards, shard_tokens
from peer_agent.publishing.text.tokenizer import encode_documents
from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.portion import METADATA, MOST_GROUPS, MOST_PARTS, MOST_TOKENS, Cutting, Portion
from peer_agent.recipes.text.tokens import Sentences, Tokens

LISTING = ".listing"  # behind the name of a source's folder: what stays on the Hub
MANY, MOST_PORTIONS = 10_000, 40_000  # of a source: above the first they are larger; a run lists no more


class RemoteFile(Struct, frozen=True):
    """A Parquet file of the commit: its bytes, what is read of a sample, and its row groups in their order."""

    name: str
    size: int
    columns: list[str]
    groups: list[Group]


class Listing(Struct, frozen=True):
    """What a dataset has on the Hub. `sampled`: row groups of which the rows are here, by file and number."""

    repository: str
    commit: str
    files: list[RemoteFile]
    sampled: list[tuple[int, int]]

    def sampled_bytes(self, column: str) -> int:
        """Unpacked, of one column of what is here."""
        return sum(self.files[file].groups[group].sizes.get(column, 0) for file, group in self.sampled)

    def left_bytes(self, column: str) -> int:
        """The same of what stays there."""
        everything = sum(group.sizes.get(column, 0) for file in self.files for group in file.groups)
        return everything - self.sampled_bytes(column)

    def unread_rows(self, column: str) -> int:
        """Rows of row groups in which that column is too large to be read, or is not there."""
        return sum(group.rows for file in self.files for group in file.groups if column not in group.sizes)


def listing_of(source: Path) -> Listing | None:
    """Of a source's folder; None where all of it is here."""
    path = source.with_name(source.name + LISTING)
    return msgspec.json.decode(path.read_bytes(), type=Listing) if path.exists() else None


def portions_of(listing: Listing, column: str, found: int, cutting: Cutting) -> list[Portion]:
    """What is not here, in an order in which neighbours of a file part ways. `found`: tokens of the rows that are."""
    sampled, left = listing.sampled_bytes(column), listing.left_bytes(column)
    if not sampled or not left:
        return []
    per_byte = found / sampled
    most = min(MOST_TOKENS // 2, max(shard_tokens(left), int(per_byte * left / MANY)))
    portions = [*_portions(listing, column, per_byte, most, cutting)]
    draws = np.random.Philox(key=ORDER_KEY).random_raw(len(portions))
    return [portions[number] for number in np.argsort(draws, kind="stable")]


def write_portion(portion: Portion, folder: Path, source: int) -> DataFile:
    """Write the file of a shard that is to be made."""
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
    """Row groups that follow one another, until they have so many tokens; those without any part them."""
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
    """Write the shard of a portion. `rows`: its row groups with the one column, as a Parquet file, already bounded."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    scratch = out.with_name(out.name + ".rows")
    laid = None
    try:
        with open_documents(rows, scratch, field=portion.column) as documents:
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
    """As many tokens as were stated: cut there, or begun again; rows without a text give the end of one."""
    if found is None or not found.tokens.size:
        end = np.array([portion.cutting.end], dtype=np.uint32)
        laid: Tokens = end.astype(np.uint16) if portion.cutting.end <= np.iinfo(np.uint16).max else end
        found = Sentences(laid, np.zeros(int(portion.cutting.sentences), dtype=np.uint32))
    length = found.tokens.size
    again = np.arange(-(-portion.tokens // length), dtype=np.int64)[:, None] * length
    begin = (again + found.starts.astype(np.int64)).ravel()
    tokens = found.tokens[np.arange(portion.tokens) % length]
    return Sentences(tokens, begin[begin < portion.tokens].astype(np.uint32))
