"""The held-out loss of a snapshot: what the model makes of text that nobody trains on."""

import math
from pathlib import Path

import torch
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.release import model_from
from peer_agent.training.data import load_shard
from peer_agent.training.loop import memory_or_problem
from peer_agent.training.objective import mean_loss

MOST_TOKENS = 200_000  # of the held-out text, from its beginning: its documents lie in random order


class Evaluated(Struct, frozen=True, kw_only=True):
    """Mean nats over the loss tokens of the first `tokens` tokens."""

    loss: float
    tokens: int


def evaluate(*, recipe: Recipe, snapshot: Path, heldout: Path, most: int = MOST_TOKENS) -> Evaluated:
    """The held-out loss, with the objective of training. Raises Problem E107, E111, E310, E360, E361."""
    tokens = load_shard(heldout)[:most]
    with memory_or_problem():
        try:
            loss = mean_loss(model_from(recipe, snapshot), recipe, tokens, torch.device("cpu"))
        except ValueError as error:
            raise Problem.of("E360", reason=error) from error
    if not math.isfinite(loss):
        raise Problem.of("E361", loss=loss)
    return Evaluated(loss=loss, tokens=len(tokens))
