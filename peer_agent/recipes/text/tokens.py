"""Shards of tokens, and samples as rows of tokens."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.training import write_json

IGNORED = -100  # label of a position without a loss

Tokens = NDArray[np.uint16] | NDArray[np.uint32]
Rows = tuple[NDArray[np.int64], NDArray[np.int64]]  # ids and labels, both [samples, context]


class Sentences(NamedTuple):
    """Tokens, and the indexes at which sentences start, in ascending order."""

    tokens: Tokens
    starts: NDArray[np.uint32]


def load_shard(path: Path) -> Tokens:
    """Return the tokens in a shard's file. Raises Problem E111 if the file is malformed."""
    tokens: Tokens = _vectors(path, tokens=np.uint16)[0]
    return tokens


def load_wide_shard(path: Path) -> Tokens:
    """Return the tokens in a shard's file, with 16 or 32 bits per token.

    Raises Problem E111 if the file is malformed.
    """
    try:
        return load_shard(path)
    except Problem:
        tokens: Tokens = _vectors(path, tokens=np.uint32)[0]
        return tokens


def load_sentences(path: Path) -> Sentences:
    """Return the tokens and sentence starts in a shard's file. Raises Problem E111 if the file is malformed."""
    return Sentences(*_vectors(path, tokens=np.uint16, starts=np.uint32))


def _vectors(path: Path, **kinds: Any) -> list[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            vectors = [file.get_tensor(name) for name in kinds]
    except SafetensorError as error:
        raise Problem.of("E111", name=path.name, url=path.parent) from error
    if any(vector.dtype != kind or vector.ndim != 1 for vector, kind in zip(vectors, kinds.values(), strict=True)):
        raise Problem.of("E111", name=path.name, url=path.parent)
    return vectors


def rows_of(samples: NDArray[np.int64], *, tokens: Tokens, context: int) -> Rows:
    """Return the ids and labels of the samples with these numbers, padding short ones with id 0 and label IGNORED."""
    at = samples[:, None] * context + np.arange(context)
    inside = at < len(tokens)
    ids = np.where(inside, tokens[np.minimum(at, len(tokens) - 1)], 0).astype(np.int64)
    return ids, np.where(inside, ids, IGNORED)


TOKENIZER_FILES = ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json")


def copy_tokenizer(folder: Path, out: Path, *, context: int) -> None:
    """Copy a tokenizer to a model's folder. `context`: the model's longest input, in tokens."""
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (out / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(out / "tokenizer_config.json", {**config, "model_max_length": context})
