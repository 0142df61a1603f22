"""Whether data are what a recipe learns from, and enough for its batch."""

from msgspec.structs import replace

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, checked
from peer_agent.recipes import KINDS
from runs.models import Dataset


def is_text(filename: str) -> bool:
    """Whether a file is read as text on its way in: all that no recipe takes for something else."""
    materials = [kind.prepares.material for kind in KINDS.values()]
    brought = [*materials, *(material.adapts for material in materials if material.adapts is not None)]
    suffixes = {suffix for material in brought for suffix in material.suffixes}
    return not filename.lower().endswith(tuple(suffixes))


def require_suited(recipe: Recipe, filename: str, on_hub: str = "") -> None:
    """A file of this name may be what the recipe learns from, or that which is so called on the Hub. Raises E377."""
    material = recipe.material
    is_suited = filename.lower().endswith(material.suffixes) or (material.or_text and is_text(filename))
    if not (on_hub == material.hub if on_hub else is_suited):
        raise Problem.of("E377", name=filename, file=material.file)


def require_data(recipe: Recipe, dataset: Dataset) -> None:
    """The prepared data are enough for a step. Raises Problem E307, E317."""
    shards = list(dataset.shards.values_list("tokens", flat=True))
    require_sample(recipe, size=sum(shards))
    _require(recipe, samples=sum(map(recipe.samples_in, shards)))


def require_batch(recipe: Recipe, *, size: int) -> None:
    """A step never takes more than data of that size have. Raises Problem E307, E317."""
    require_sample(recipe, size=size)
    _require(recipe, samples=recipe.samples_in(size))


def require_sample(recipe: Recipe, *, size: int) -> None:
    """There is at least one whole sample. Raises Problem E317."""
    if size < recipe.least_size():
        raise Problem.of("E317", size=f"{size:,}", unit=recipe.material.unit, least=f"{recipe.least_size():,}")


def with_usual_steps(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe with as many steps as prepared data are worth."""
    samples = sum(map(recipe.samples_in, dataset.shards.values_list("tokens", flat=True)))
    return checked(replace(recipe, target_steps=recipe.steps_over(samples)))


def _require(recipe: Recipe, *, samples: int) -> None:
    if samples < recipe.target_batch:
        raise Problem.of("E307", samples=f"{samples:,}", needed=f"{recipe.target_batch:,}")
