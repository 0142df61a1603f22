"""What is known of the texts that a run mixes, in the order of the recipe's weights."""

from typing import NamedTuple

from runs.ledger.coverage import settled_units
from runs.models import Dataset, Run
from runs.states import NOT_OPEN


class SourceLine(NamedTuple):
    """One text of a run. `share` is its part of what is dealt from now on, 0 to 1."""

    dataset: Dataset
    tokens: int | None  # once it is prepared
    share: float

    @property
    def percent(self) -> str:
        """The share as people read it."""
        return percent(self.share)


def percent(share: float) -> str:
    """As people read it; small shares with two digits."""
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"


def source_lines(run: Run) -> list[SourceLine]:
    """All texts of a run; two queries at most, none where an open run has one alone."""
    recipe, first = run.parsed_recipe, run.dataset
    has_one = not recipe.mix and run.state not in NOT_OPEN  # a run that opens with several has their weights
    sources = [first] if has_one else first.sources()
    if len(sources) == 1:
        return [SourceLine(first, first.tokens, 1.0)]
    is_ready = first.state == Dataset.State.READY
    sizes = first.source_tokens(len(sources)) if is_ready else [source.size for source in sources]
    parts = recipe.mix or sizes
    together = sum(parts)
    return [
        SourceLine(source, size if is_ready else None, part / together if together else 1 / len(sources))
        for source, size, part in zip(sources, sizes, parts, strict=True)
    ]


def shares_used(run: Run, count: int) -> list[float]:
    """Which part of the samples in updates is of each of the `count` sources: weights may have changed since."""
    sources = list(run.dataset.shards.order_by("position").values_list("source", flat=True))
    used = [0] * count
    for unit in settled_units(run):
        used[sources[unit.shard]] += unit.samples
    return [part / max(sum(used), 1) for part in used]
