"""Checks on a model state that a machine uploads. The site hashes the state while writing it, then checks it in blocks.

Memory use therefore does not grow with the model. The site stores only a state with the hash that most people reported.
The checks reject even such a state if it would harm a process that loads it.
"""

import hashlib
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, Protocol

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.digests import VECTORS, state_digest
from runs import storage
from runs.models import Run

BLOCK_BYTES = 1024 * 1024
BLOCK = 1 << 18  # elements checked at a time
LENGTH_BYTES = 8  # size of the little-endian number before the header
ELEMENT_BYTES = 4
HEADER_BYTES = 1024 * 1024  # longer than any safetensors header that includes the layout

Number = Annotated[str, Meta(pattern="^[0-9]{1,15}$")]


class Readable(Protocol):
    """A request body that can be read in blocks."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, or none at the end of the body."""


class Described(Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot's metadata. `layout` is JSON with the parameters' names and shapes."""

    step: Number
    index: Number
    log_digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    layout: str


class Tensor(Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot file's header, which contains exactly these three vectors."""

    metadata: Described = msgspec.field(name="__metadata__")
    parameters: Tensor
    moment1: Tensor
    moment2: Tensor


class Place(Struct, frozen=True):
    """A state's place in the log, and the digest of the record there."""

    index: int
    step: int
    log_digest: str


def largest_snapshot(run: Run) -> int:
    """Return the largest size, in bytes, that a snapshot of this run can have."""
    return run.elements * len(VECTORS) * ELEMENT_BYTES + HEADER_BYTES


def write_body(body: Readable, path: Path, *, size: int) -> str:
    """Write up to `size` bytes of a body to a file. Return their SHA-256 in hexadecimal."""
    digest, left = hashlib.sha256(), size
    with path.open("wb") as file:
        while left and (block := body.read(min(BLOCK_BYTES, left))):
            left -= len(block)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def first_layout(run: Run) -> str:
    """Return the names and shapes of the model's parameters as JSON, read from the run's first snapshot."""
    first = run.snapshots.get(index=0)
    header, _ = read_header(storage.local(storage.snapshot_path(run, first.file)), step=0)
    return header.metadata.layout


def check_state(path: Path, *, elements: int, layout: str, place: Place) -> str:
    """Return a snapshot's state digest. Raises Problem E310 if its place, layout, size or any value is wrong."""
    header, start = read_header(path, step=place.step)
    described = header.metadata
    if Place(int(described.index), int(described.step), described.log_digest) != place or described.layout != layout:
        _refuse(place.step)
    size = ELEMENT_BYTES * elements
    for number, name in enumerate(VECTORS):
        expected = Tensor("F32", (elements,), (size * number, size * (number + 1)))
        if getattr(header, name) != expected:
            _refuse(place.step)
    if path.stat().st_size != start + size * len(VECTORS):
        _refuse(place.step)
    shape = (len(VECTORS), elements)
    vectors: NDArray[np.float32] = np.memmap(path, dtype="<f4", mode="r", offset=start, shape=shape)
    if not all(_is_finite(vector) for vector in vectors):
        _refuse(place.step)
    return state_digest(*vectors)


def read_header(path: Path, *, step: int) -> tuple[Header, int]:
    """Return a snapshot file's header, and the offset at which the values begin.

    Raises Problem E310, naming `step`, if the header is not valid.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        text = file.read(length) if length <= HEADER_BYTES else b""
    if not text or len(text) != length:
        _refuse(step)
    try:
        return msgspec.json.decode(text, type=Header), LENGTH_BYTES + length
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E310", step=step) from error


def _is_finite(vector: NDArray[np.float32]) -> bool:
    blocks = (vector[start : start + BLOCK] for start in range(0, vector.size, BLOCK))
    return all(bool(np.isfinite(block).all()) for block in blocks)


def _refuse(step: int) -> NoReturn:
    raise Problem.of("E310", step=step)


# Moving a snapshot's state to another place in the log

# The values are copied and the header is rewritten. A machine in that state would upload the same bytes for that place,
# so new machines and replays need not know of the rollback.


class Restated(NamedTuple):
    """A restated file's SHA-256 in hexadecimal, and its size in bytes."""

    file: str
    size: int


def restate(source: Path, target: Path, *, step: int, index: int, log_digest: str) -> Restated:
    """Copy a snapshot to `target`, with a header that assigns it to another log entry.

    Raises Problem E310 if `source` is not a snapshot, or OSError if a file cannot be read or written.
    """
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
