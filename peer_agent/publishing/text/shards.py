"""Token files: content-addressed safetensors with one uint16 tensor `tokens`."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.numpy import save

SHARD_TOKENS = 1 << 17  # at which a shard is closed; documents stay whole

Tokens = NDArray[np.uint16]


class TokenFile(Struct, frozen=True):
    """A written file: sha256 in hexadecimal, and how many tokens it holds."""

    digest: str
    tokens: int


def in_shards(documents: Iterable[list[int]]) -> Iterator[Tokens]:
    """Documents laid end to end in shards of about SHARD_TOKENS tokens. Every document has two tokens or more."""
    tokens: list[int] = []
    for document in documents:
        tokens += document
        if len(tokens) >= SHARD_TOKENS:
            yield np.array(tokens, dtype=np.uint16)
            tokens = []
    if tokens:
        yield np.array(tokens, dtype=np.uint16)


def write_shard(tokens: Tokens, folder: Path) -> TokenFile:
    """Write tokens to `<sha256>.safetensors` in a folder."""
    content = save({"tokens": tokens})
    digest = hashlib.sha256(content).hexdigest()
    (folder / f"{digest}.safetensors").write_bytes(content)
    return TokenFile(digest, tokens.size)


def write_heldout(tokens: Tokens, path: Path) -> TokenFile:
    """Write the tokens that nobody trains on."""
    content = save({"tokens": tokens})
    path.write_bytes(content)
    return TokenFile(hashlib.sha256(content).hexdigest(), tokens.size)


def entropy_of(counts: NDArray[np.int64]) -> float:
    """Nats per token of a distribution of tokens: what a model that knows nothing but frequencies would reach."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum()) + 0.0
