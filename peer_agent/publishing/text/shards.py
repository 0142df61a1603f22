"""Token files: content-addressed safetensors with `tokens`, and where sentences begin in `starts`.

Tokens are uint16, or uint32 where a tokenizer has more than 65,536.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from peer_agent.publishing.content import write_content
from peer_agent.publishing.text.tokenizer import Encoded
from peer_agent.recipes.preparation import DataFile
from peer_agent.recipes.text.tokens import Sentences

SHARD_TOKENS, LARGEST = 1 << 17, 1 << 23  # at which a shard is closed; documents stay whole
MANY = 4096  # shards of a text, above which they are larger
TOKEN_BYTES = 4  # of text, about, in most languages


def shard_tokens(text_bytes: int) -> int:
    """At how many tokens shards are closed: the larger a text, the larger they are, so that a run can list them."""
    size = SHARD_TOKENS
    while size < LARGEST and text_bytes > size * TOKEN_BYTES * MANY:
        size *= 2
    return size


def in_shards(documents: Iterable[Encoded], size: int) -> Iterator[Sentences]:
    """Documents laid end to end in shards of about so many tokens. Every document has two tokens or more."""
    tokens, starts = array("I"), array("I")
    for document in documents:
        starts.extend(len(tokens) + start for start in document.starts)
        tokens.extend(document.tokens)
        if len(tokens) >= size:
            yield _as_arrays(tokens, starts)
            tokens, starts = array("I"), array("I")
    if tokens:
        yield _as_arrays(tokens, starts)


def _as_arrays(tokens: "array[int]", starts: "array[int]") -> Sentences:
    laid = np.array(tokens, dtype=np.uint32)
    narrow = laid.max() <= np.iinfo(np.uint16).max
    return Sentences(laid.astype(np.uint16) if narrow else laid, np.array(starts, dtype=np.uint32))


def write_shard(shard: Sentences, folder: Path, source: int = 0) -> DataFile:
    """Write a shard to `<sha256>.safetensors` in a folder; where sentences begin, if that is known."""
    return DataFile(write_content(content_of(shard), folder), shard.tokens.size, source)


def write_heldout(documents: Iterable[Encoded], path: Path) -> DataFile:
    """Write the tokens that nobody trains on."""
    laid = [*in_shards(documents, SHARD_TOKENS)]
    tokens = np.concatenate([shard.tokens for shard in laid])
    ends = np.cumsum([0, *(len(shard.tokens) for shard in laid)])
    starts = [shard.starts + np.uint32(end) for shard, end in zip(laid, ends, strict=False)]
    content = content_of(Sentences(tokens, np.concatenate(starts)))
    path.write_bytes(content)
    return DataFile(hashlib.sha256(content).hexdigest(), tokens.size)


def content_of(shard: Sentences) -> bytes:
    """A shard's file."""
    tensors: dict[str, NDArray[Any]] = {"tokens": shard.tokens}
    return save(tensors | ({"starts": shard.starts} if shard.starts.size else {}))


def entropy_of(counts: NDArray[np.int64]) -> float:
    """Nats per token of a distribution of tokens: what a model that knows nothing but frequencies would reach."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum()) + 0.0
