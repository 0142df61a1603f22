"""Shards of tokens, and rows of samples out of them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem

IGNORED = -100  # label of a position that has no loss

Tokens = NDArray[np.uint16]
Rows = tuple[NDArray[np.int64], NDArray[np.int64]]  # ids and labels, both [samples, context]


def load_shard(path: Path) -> Tokens:
    """The tokens of a shard file. Raises Problem E111 where it is not one."""
    try:
        with safe_open(path, framework="numpy") as file:
            tokens: Tokens = file.get_tensor("tokens")
    except SafetensorError as error:
        raise Problem.of("E111", name=path.name, url=path.parent) from error
    if tokens.dtype != np.uint16 or tokens.ndim != 1:
        raise Problem.of("E111", name=path.name, url=path.parent)
    return tokens


def rows_of(samples: NDArray[np.int64], *, tokens: Tokens, context: int) -> Rows:
    """Ids and labels of samples by number. A shorter last sample is padded with id 0, labelled IGNORED."""
    at = samples[:, None] * context + np.arange(context)
    inside = at < len(tokens)
    ids = np.where(inside, tokens[np.minimum(at, len(tokens) - 1)], 0).astype(np.int64)
    return ids, np.where(inside, ids, IGNORED)
