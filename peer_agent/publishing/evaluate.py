"""The held-out loss of a snapshot: what the model makes of data that nobody trains on."""

import math
from pathlib import Path

import torch
from msgspec import Struct

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.publishing.release import model_from
from peer_agent.recipes.training import NO_FILES, training_of
from peer_agent.training.loop import memory_or_problem
from peer_agent.training.objective import mean_loss

MOST_UNITS = 200_000  # loss units, from the beginning of what is held out: it lies in random order


class Evaluated(Struct, frozen=True, kw_only=True):
    """Mean nats over so many loss units, and what else the recipe judges a model by."""

    loss: float
    units: int
    figures: dict[str, float]


def evaluate(
    *, recipe: Recipe, snapshot: Path, heldout: Path, most: int = MOST_UNITS, files: Path = NO_FILES
) -> Evaluated:
    """The held-out loss, with the objective of training. Raises Problem E107, E111, E310, E360, E361."""
    shard = training_of(recipe).load_shard(heldout)
    with memory_or_problem():
        model = model_from(recipe, snapshot, files)
        try:
            mean = mean_loss(model, recipe, shard, torch.device("cpu"), most=most)
        except ValueError as error:
            raise Problem.of("E360", reason=error) from error
        if not math.isfinite(mean.loss):
            raise Problem.of("E361", loss=mean.loss)
        figures = training_of(recipe).figures_of(recipe, model, shard, mean.loss)
    return Evaluated(loss=mean.loss, units=mean.units, figures=dict(figures))
