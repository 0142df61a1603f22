"""Which samples a leased unit stands for."""

from typing import Protocol

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sampling import order_of
from peer_agent.recipes.training import Batch, Place, Samples, Shard, training_of


class Shards(Protocol):
    """Shards by number: a list, or a mapping that loads them when they are asked for."""

    def __getitem__(self, shard: int, /) -> Shard: ...


def batch_of(recipe: Recipe, unit: Unit, *, run: RunId, shard: Shard) -> Batch:
    """A unit as the model takes it, a row per sample. Raises ValueError for a unit beyond the shard."""
    kind = training_of(recipe)
    samples = samples_of(unit, run=run, of=recipe.samples_in(kind.size_of(shard)))
    return kind.batch_of(recipe, shard, samples, Place(run, unit.epoch, unit.shard))


def samples_of(unit: Unit, *, run: RunId, of: int) -> Samples:
    """The samples of a unit by number, where the shard holds so many. Raises ValueError for a unit beyond it."""
    if not 0 <= unit.start < unit.stop <= of:
        raise ValueError(f"samples {unit.start} to {unit.stop} of a shard of {of}")
    return order_of(run, unit.epoch, unit.shard, of)[unit.start : unit.stop]
