"""Token shards, and the batch that a leased unit stands for."""

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.sampling import order_of, samples_in

IGNORED = -100  # label of a position that has no loss

Tokens = NDArray[np.uint16]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]  # ids and labels, both [samples, context]


class Shards(Protocol):
    """Shards by number: a list, or a mapping that loads them when they are asked for."""

    def __getitem__(self, shard: int, /) -> Tokens: ...


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


def batch_of(unit: Unit, *, run: RunId, tokens: Tokens, context: int) -> Batch:
    """Ids and labels of a unit, a row per sample. Raises ValueError for a unit beyond the shard."""
    samples = samples_in(len(tokens), context)
    if not 0 <= unit.start < unit.stop <= samples:
        raise ValueError(f"samples {unit.start} to {unit.stop} of a shard of {samples}")
    order = order_of(run, unit.epoch, unit.shard, samples)
    return rows_of(order[unit.start : unit.stop], tokens=tokens, context=context)


def rows_of(samples: NDArray[np.int64], *, tokens: Tokens, context: int) -> Batch:
    """Ids and labels of samples by number. A shorter last sample is padded with id 0, labelled IGNORED."""
    at = samples[:, None] * context + np.arange(context)
    inside = at < len(tokens)
    ids = np.where(inside, tokens[np.minimum(at, len(tokens) - 1)], 0).astype(np.int64)
    return ids, np.where(inside, ids, IGNORED)


def loss_tokens_in(labels: NDArray[np.int64]) -> int:
    """How many tokens have a loss: all labelled ones but the first of a sample, which nothing predicts."""
    return int(np.count_nonzero(labels[:, 1:] != IGNORED))
