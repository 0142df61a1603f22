"""Rule 32: groups of unequal size, averaged by loss tokens, equal one large batch. An unweighted mean exceeds the
bound.

The same committed rounds also go through `tests.end_to_end.rig.reference`, which shares no code with the agent."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import save_file

from peer_agent.protocol.log.records import Entry, Unit, digest_of, to_lines
from peer_agent.protocol.recipe import OptimizerName, Recipe, encode_recipe
from peer_agent.recipes.text.recipe import samples_in
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from peer_agent.training.units import Taken
from tests.end_to_end.rig import reference
from tests.training.commits import (
    RUN,
    Vector,
    commit,
    small_recipe,
    some_shards,
    take_units,
    unweighted_mean,
    weighted_mean,
)

STEPS = 20
GROUPS = ((0, 3), (3, 8), (8, 10))  # each group's units, out of ten
BOUNDS = {"lamb": 1e-6, "adamw": 1e-5, "sgd": 1e-6, "larc": 1e-6}
RECIPES = {
    "lamb": {"name": "lamb", "learning_rate": 0.01},
    "adamw": {"name": "adamw", "learning_rate": 0.001},
    "sgd": {"name": "sgd", "learning_rate": 0.05},
    "larc": {"name": "larc", "learning_rate": 2.4},
}
Mean = Callable[[Sequence[Taken]], Vector]


def rounds() -> list[list[Unit]]:
    """Return rounds of ten units: from two shards in turn, with one to four samples in each unit, some of them
    short."""
    free = [[Unit(epoch, shard, 0, 0)] for epoch, shard in ((0, 0), (0, 1))]
    sizes = [samples_in(len(tokens), 24) for tokens in some_shards()]
    found: list[Unit] = []
    for number in range(10 * STEPS):
        place = free[number % 2]
        last = place[-1]
        if last.stop >= sizes[last.shard]:
            last = Unit(last.epoch + 1, last.shard, 0, 0)
        place.append(Unit(last.epoch, last.shard, last.stop, min(last.stop + 1 + number % 4, sizes[last.shard])))
        found.append(place[-1])
    return [found[start : start + 10] for start in range(0, len(found), 10)]


def train(recipe: Recipe, mean: Mean, groups: Sequence[tuple[int, int]]) -> tuple[Replica, list[Entry]]:
    trainer = Trainer(Replica(recipe), RUN, some_shards())
    log = []
    for units in rounds():
        takings = [take_units(trainer, units[first:stop]) for first, stop in groups]
        log.append(commit(trainer.replica, mean(takings), takings))
    return trainer.replica, log


# An optimizer is the same for all families. An end-to-end test compares LAMB's steps with an independent process.
FAMILIES = ["gpt2", *(pytest.param(family, marks=pytest.mark.check) for family in ("llama", "qwen3"))]


def difference(one: Replica, other: Replica) -> float:
    return float((one.parameters - other.parameters).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_uneven_groups_equal_one_large_batch(name: str, family: str) -> None:
    recipe = small_recipe(family, **RECIPES[name])
    alone, _ = train(recipe, weighted_mean, [(0, 10)])
    together, _ = train(recipe, weighted_mean, GROUPS)
    assert difference(together, Replica(recipe)) > 0.005
    assert difference(together, alone) <= BOUNDS[name]
    unweighted, _ = train(recipe, unweighted_mean, GROUPS)
    assert difference(unweighted, alone) > 10 * BOUNDS[name]


def write_folder(folder: Path, recipe: Recipe, log: Sequence[Entry]) -> None:
    (folder / "records").mkdir()
    (folder / "recipe.json").write_bytes(encode_recipe(recipe))
    Replica(recipe).save(folder / "step0.safetensors")
    listed = []
    for number, tokens in enumerate(some_shards()):
        listed.append({"digest": f"{number:064x}", "tokens": len(tokens)})
        save_file({"tokens": tokens}, folder / f"{number:064x}.safetensors")
    (folder / "shards.json").write_text(json.dumps(listed))
    for signed in log:
        (folder / "records" / digest_of(signed)).write_bytes(to_lines(signed))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_the_reference_agrees(name: str, family: str, tmp_path: Path) -> None:
    recipe = small_recipe(family, **RECIPES[name])
    replica, log = train(recipe, weighted_mean, GROUPS)
    write_folder(tmp_path, recipe, log)
    weights = reference.main(tmp_path)
    assert [piece.name for piece in replica.layout.pieces] == list(weights)
    flat = np.concatenate([tensor.numpy().ravel() for tensor in weights.values()])
    assert float(np.abs(replica.parameters.numpy() - flat).max()) <= BOUNDS[name]


def test_the_reference_names_steps_that_are_not_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe()
    trainer = Trainer(Replica(recipe), RUN, some_shards())
    log = []
    for number in range(3):
        taken = take_units(trainer, [Unit(0, 0, number, number + 1)])
        log.append(commit(trainer.replica, weighted_mean([taken]), [taken], exact=number != 1))
    write_folder(tmp_path, recipe, log)
    reference.main(tmp_path)
    assert "steps not exact: [2]" in capsys.readouterr().out
