"""The mean loss of a model over data, with the objective of its recipe."""

import math

import torch
from msgspec import Struct

from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.training import Shard, heldout_batches, training_of


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
    loss_sum, loss_units = 0.0, 0
    with torch.no_grad():
        for batch in heldout_batches(recipe, shard):
            loss_sum += float(kind.summed_loss(recipe, model, batch, device))
            loss_units += kind.loss_units_in(batch)
            if loss_units >= most:
                break
    if not loss_units:
        raise ValueError("the data are too little to be evaluated")
    return Mean(loss_sum / loss_units, loss_units)
