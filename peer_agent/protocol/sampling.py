"""The order of samples, which determines a unit's samples. Trainers, audits and the tests' reference all compute it."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import RunId


def order_of(run: RunId, epoch: int, shard: int, samples: int) -> NDArray[np.int64]:
    """Return the order of a shard's samples in one epoch, as an array from position to sample.

    Philox is keyed by the SHA-256 of (run, epoch, shard). Its raw stream is the same in all versions of numpy.
    """
    key = hashlib.sha256(f"{run}/{epoch}/{shard}".encode()).digest()
    generator = np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8"))
    return np.argsort(generator.random_raw(samples), kind="stable")
