"""Whether a text is large enough for a run's batch."""

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from runs.models import Dataset


def require_text(recipe: Recipe, dataset: Dataset) -> None:
    """The prepared text is enough for a step. Raises Problem E307, E317."""
    shards = list(dataset.shards.values_list("tokens", flat=True))
    require_sample(recipe, tokens=sum(shards))
    _require(recipe, samples=sum(map(recipe.samples_in, shards)))


def require_batch(recipe: Recipe, *, tokens: int) -> None:
    """A step never takes more than a text of that many tokens has. Raises Problem E307, E317."""
    require_sample(recipe, tokens=tokens)
    _require(recipe, samples=recipe.samples_in(tokens))


def require_sample(recipe: Recipe, *, tokens: int) -> None:
    """There is at least one whole sample. Raises Problem E317."""
    if tokens < recipe.least_size():
        raise Problem.of("E317", tokens=f"{tokens:,}", context=f"{recipe.least_size():,}")


def _require(recipe: Recipe, *, samples: int) -> None:
    if samples < recipe.target_batch:
        raise Problem.of("E307", samples=f"{samples:,}", needed=f"{recipe.target_batch:,}")
