"""One averaged span as a file.

In this order: MAGIC, the number of chunks (uint32, big-endian), a leaf of 40 bytes for each, the size of each
payload (uint32), the payloads.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import mkstemp

from msgspec import Struct

from peer_agent.protocol.errors import disk_errors
from peer_agent.protocol.log.merkle import LEAF, Leaf, pack_leaves, unpack_leaves

MAGIC = b"MHSPAN1\n"
HEAD = struct.Struct(">8sI")
TEMPORARY = ".tmp"


class SpanFile(Struct, frozen=True, eq=False):
    """What lies on disk. The payloads are pages of the file and are read when they are looked at."""

    leaves: tuple[Leaf, ...]
    payloads: tuple[memoryview, ...]


def write_span(path: Path, leaves: Sequence[Leaf], payloads: Sequence[bytes | memoryview]) -> None:
    """Write a span durably. Raises Problem E106."""
    if len(leaves) != len(payloads):
        raise ValueError(f"{len(leaves)} leaves for {len(payloads)} chunks")
    sizes = struct.pack(f">{len(payloads)}I", *map(len, payloads))
    write_durably(path, [HEAD.pack(MAGIC, len(payloads)), pack_leaves(leaves), sizes, *payloads])


def read_span(path: Path) -> SpanFile | None:
    """The span, None where there is no whole file. Whether its bytes are right, the leaves tell."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _parsed(data)
    except (FileNotFoundError, ValueError, struct.error):
        return None


def _parsed(data: memoryview) -> SpanFile:
    magic, count = HEAD.unpack_from(data)
    sizes_at = HEAD.size + count * LEAF.size
    sizes = struct.unpack_from(f">{count}I", data, sizes_at)
    ends = list(accumulate(sizes, initial=sizes_at + 4 * count))
    if magic != MAGIC or ends[-1] != len(data):
        raise ValueError("not a whole span")
    leaves = unpack_leaves(bytes(data[HEAD.size : sizes_at]))
    return SpanFile(tuple(leaves), tuple(data[start:end] for start, end in pairwise(ends)))


def write_durably(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that is there whole or not at all, also after a power cut. Raises Problem E106."""
    with disk_errors(path):
        _write_and_rename(path, parts)


def _write_and_rename(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    # A name of its own for every writer: two may fetch the same span.
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
    """Make the names in a folder durable."""
    if os.name == "nt":
        return  # Windows opens no folders; NTFS journals their names
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
