"""A replica's state as it is handed in: written to disk while it is hashed, then looked at as a safetensors file."""

import hashlib
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.digests import state_digest
from peer_agent.protocol.errors import Problem
from runs.models import Run, Snapshot
from runs.storage import snapshot_path

VECTORS = ("parameters", "moment1", "moment2")
BLOCK_BYTES = 1024 * 1024


class Readable(Protocol):
    """A body that is read in blocks."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


class Offer(NamedTuple):
    """Where in the log the state claims to be, and the digest of what it holds."""

    log_index: int
    log_digest: str
    state_digest: str


def write_body(body: Readable, path: Path) -> str:
    """Write the body to a file; its sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        while block := body.read(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def read_offer(path: Path, *, elements: int, step: int) -> Offer:
    """What a file of three flat float32 vectors of `elements` says. Raises Problem E310 on anything else."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if set(file.keys()) != set(VECTORS) or metadata["step"] != str(step):
                raise Problem.of("E310", step=step)
            vectors = [file.get_tensor(name) for name in VECTORS]
            if any(vector.dtype != np.float32 or vector.shape != (elements,) for vector in vectors):
                raise Problem.of("E310", step=step)
            return Offer(int(metadata["index"]), metadata["log_digest"], state_digest(*vectors))
    except (SafetensorError, KeyError, ValueError) as error:
        raise Problem.of("E310", step=step) from error


def forget_snapshot(run: Run, file: str) -> None:
    """Delete a file that no snapshot is."""
    if not Snapshot.objects.filter(run=run, file=file).exists():
        snapshot_path(run, file).unlink(missing_ok=True)
