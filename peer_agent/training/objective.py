"""The mean loss of a model over data, with the objective of its recipe."""

import math

import numpy as np
import torch
from msgspec import Struct

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import Place, Shard, training_of

HELD_OUT = Place(RunId("0" * 32), 0, 0)  # the same chance for every snapshot of every run


class Mean(Struct, frozen=True):
    """Nats over so many loss units."""

    loss: float
    units: int


def mean_loss(
    model: torch.nn.Module, recipe: Recipe, shard: Shard, device: torch.device, *, most: float = math.inf
) -> Mean:
    """The mean loss over a shard's samples, from the first on, until there are `most` loss units.

    A micro-batch at a time. Raises ValueError where there is none.
    """
    kind = training_of(recipe)
    samples = np.arange(recipe.samples_in(kind.size_of(shard)))
    loss_sum, loss_units = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(samples), recipe.micro_batch):
            batch = kind.batch_of(recipe, shard, samples[start : start + recipe.micro_batch], HELD_OUT)
            loss_sum += float(kind.summed_loss(recipe, model, batch, device))
            loss_units += kind.loss_units_in(batch)
            if loss_units >= most:
                break
    if not loss_units:
        raise ValueError("the data are too little to be evaluated")
    return Mean(loss_sum / loss_units, loss_units)
