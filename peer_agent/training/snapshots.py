"""A replica's state as a file: safetensors with `parameters`, `moment1`, `moment2` (flat float32) and metadata. The
file is named by its digest, so every writer must write the same bytes. The safetensors library writes metadata in
random order, so this module writes canonical bytes itself. They contain nothing that depends on the machine.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem, disk_errors
from peer_agent.protocol.log.digests import VECTORS
from peer_agent.training.model import Layout

BLOCK = 1 << 22  # elements written at a time


class State(Struct, frozen=True, kw_only=True):
    """A copy of a replica's state in CPU memory: three flat float32 vectors, and its position in the log."""

    layout: Layout
    step: int
    index: int
    log_digest: str
    parameters: NDArray[np.float32]
    moment1: NDArray[np.float32]
    moment2: NDArray[np.float32]

    def save(self, path: Path) -> str:
        """Write a snapshot atomically and return its SHA-256 in hexadecimal. Raises Problem E106 if the disk fails."""
        part = path.with_name(path.name + ".part")
        with disk_errors(path.parent):
            try:
                digest = self._write(part)
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
        return digest

    def hashed(self) -> tuple[str, int]:
        """Return the snapshot's SHA-256 in hexadecimal and its size in bytes, without writing it."""
        return hash_of(self._blocks())

    def _write(self, path: Path) -> str:
        sha256 = hashlib.sha256()
        with path.open("wb") as file:
            for block in self._blocks():
                sha256.update(block)
                file.write(block)
        return sha256.hexdigest()

    def _blocks(self) -> Iterator[bytes | memoryview]:
        yield header_of(self.layout, step=self.step, index=self.index, log_digest=self.log_digest)
        for name in VECTORS:
            yield from canonical_blocks(getattr(self, name))


def header_of(layout: Layout, *, step: int, index: int, log_digest: str) -> bytes:
    """Return the snapshot's header, which precedes the values."""
    size = 4 * layout.elements
    metadata = {
        "step": str(step),
        "index": str(index),
        "log_digest": log_digest,
        "layout": msgspec.json.encode(layout).decode(),
    }
    tensors = {
        name: {"dtype": "F32", "shape": [layout.elements], "data_offsets": [size * i, size * (i + 1)]}
        for i, name in enumerate(VECTORS)
    }
    header = msgspec.json.encode({"__metadata__": metadata, **tensors})
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def canonical_blocks(vector: NDArray[np.float32]) -> Iterator[memoryview]:
    """Yield the bytes of a flat vector as stored in the snapshot: little-endian, one block at a time."""
    for start in range(0, vector.size, BLOCK):
        yield np.ascontiguousarray(vector[start : start + BLOCK], dtype="<f4").data.cast("B")


def hash_of(blocks: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Return the blocks' SHA-256 in hexadecimal and their total size in bytes."""
    sha256, size = hashlib.sha256(), 0
    for block in blocks:
        sha256.update(block)
        size += len(block)
    return sha256.hexdigest(), size


def read_state(path: Path) -> State:
    """Return the state in a snapshot. Raises Problem E310 if the file is malformed."""
    step = "?"
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            step = metadata["step"]
            layout = msgspec.json.decode(metadata["layout"], type=Layout)
            vectors = {name: _vector(file.get_tensor(name), layout) for name in VECTORS}
            return State(
                layout=layout,
                step=int(step),
                index=int(metadata["index"]),
                log_digest=metadata["log_digest"],
                **vectors,
            )
    except (SafetensorError, KeyError, ValueError, msgspec.DecodeError) as error:
        raise Problem.of("E310", step=step) from error


def _vector(values: NDArray[np.float32], layout: Layout) -> NDArray[np.float32]:
    if values.dtype != np.float32 or values.shape != (layout.elements,):
        raise ValueError("not a flat float32 vector of the layout")
    return values
