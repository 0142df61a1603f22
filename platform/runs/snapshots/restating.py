"""The state of a snapshot under another place in the log: its values are copied, its header is written anew.

What comes out are the canonical bytes that a replica would hand in there, so that whoever begins from it, and whoever
replays from it, needs to know of no rollback.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from runs.snapshots.state_check import BLOCK_BYTES, LENGTH_BYTES, Header, read_header


class Restated(NamedTuple):
    """The new file's sha256, hexadecimal, and its size in bytes."""

    file: str
    size: int


def restate(source: Path, target: Path, *, step: int, index: int, log_digest: str) -> Restated:
    """Write it to `target`. Raises OSError, and Problem E310 where `source` is no snapshot."""
    header, start = read_header(source, step=step)
    described = replace(header.metadata, index=str(index), log_digest=log_digest)
    sha256 = hashlib.sha256()
    with source.open("rb") as values, target.open("wb") as file:
        values.seek(start)
        block = _header_bytes(replace(header, metadata=described))
        while block:
            sha256.update(block)
            file.write(block)
            block = values.read(BLOCK_BYTES)
        return Restated(sha256.hexdigest(), file.tell())


def _header_bytes(header: Header) -> bytes:
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
