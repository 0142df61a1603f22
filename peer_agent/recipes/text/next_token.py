"""What models have in common that predict every token of a sample but its first, from those before it."""

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from peer_agent.recipes.text.tokens import IGNORED, Tokens
from peer_agent.recipes.training import Batch

LARGEST_LOSS = 700.0  # above it, a perplexity is no number


def size_of(shard: Tokens) -> int:
    """In tokens."""
    return len(shard)


def loss_units_in(batch: Batch) -> int:
    """All labelled tokens but the first of a sample, which nothing predicts."""
    _, labels = batch
    return int(np.count_nonzero(labels[:, 1:] != IGNORED))


def summed_loss(recipe: Any, model: torch.nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
    """Every token but a sample's first is predicted from those before it."""
    del recipe
    ids, labels = (torch.from_numpy(part).to(device) for part in batch)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(
        logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
    )


def perplexity(loss: float) -> float:
    """Among how many words such a model chooses, as it were."""
    return math.exp(min(loss, LARGEST_LOSS))
