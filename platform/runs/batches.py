"""Whether a text is large enough for a run's batch."""

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.sampling import samples_in
from runs.models import Dataset


def samples_of(dataset: Dataset, recipe: Recipe) -> int:
    """Samples in one pass over the prepared text."""
    return sum(samples_in(tokens, recipe.model.context) for tokens in dataset.shards.values_list("tokens", flat=True))


def require_batch(recipe: Recipe, *, samples: int) -> None:
    """A step never takes more than the text has. Raises Problem E307."""
    if samples < recipe.target_batch:
        raise Problem.of("E307", samples=f"{samples:,}", needed=f"{recipe.target_batch:,}")
