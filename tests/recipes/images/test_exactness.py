"""Averaging groups of unequal size by loss units equals a single process that draws its own crops (rules 32 and 33)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.numpy import save_file

from demo.recipes import digits_tar
from peer_agent.protocol.log.records import Unit, digest_of, to_lines
from peer_agent.protocol.recipe import Optimizer, encode_recipe
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.image_ssl import ImageSSL, Multicrop
from peer_agent.recipes.images.crops import Looks
from peer_agent.recipes.images.pixels import Images, shards_of
from peer_agent.recipes.images.recipe import ImageRecipe
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.site_work.prepare_images import prepare
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica
from tests.end_to_end.rig import image_reference
from tests.training.commits import RUN, commit, take_units, weighted_mean

STEPS, UNIT = 4, 8
GROUPS = ((0, 1), (1, 2), (2, 5))  # each group's units, out of five
BOUND = 1e-4  # the difference is 2e-6 unless rounding flips a ReLU
TRUNK = Trunk(family="resnet10", width=8)
SGD = Optimizer(name="sgd", learning_rate=0.05, beta1=0.9, weight_decay=1e-3, clip_norm=1.0, warmup_steps=2)
LARC = Optimizer(name="larc", learning_rate=0.6, beta1=0.9, epsilon=1e-8, weight_decay=1e-6, clip_norm=0.0)
RECIPES: dict[str, ImageRecipe] = {
    "labels": ImageClassification(
        trunk=TRUNK, micro_batch=UNIT, target_batch=5 * UNIT, optimizer=SGD, shift=0.1, flip=1
    ),
    "swav": ImageSSL(
        trunk=TRUNK,
        micro_batch=UNIT,
        target_batch=5 * UNIT,
        optimizer=replace(LARC, warmup_steps=2),
        crops=Multicrop(small=3),
        looks=Looks(jitter=0.9, grey=0.4, blur=0.7),
        hidden=24,
        projection=16,
        prototypes=12,
        frozen_steps=2,
    ),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Images], list[str], Path]:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "digits.tar").write_bytes(digits_tar())
    made = prepare(folder / "digits.tar", folder, RECIPES["labels"].preparation())
    return [coloured(images) for images in shards_of(folder / "shards")][:1], list(made.classes), folder


def coloured(images: Images) -> Images:
    """Return the digits, each in its own colour, to reveal faults that grey images hide."""
    inks = np.random.Generator(np.random.Philox(5)).integers(40, 256, (len(images.labels), 1, 1, 3))
    return Images((images.pixels.astype(np.int64) * inks // 255).astype(np.uint8), images.labels)


@pytest.mark.parametrize("name", RECIPES)
def test_uneven_groups_make_what_the_reference_makes(
    digits: tuple[list[Images], list[str], Path], tmp_path: Path, name: str
) -> None:
    torch.set_num_threads(1)
    shards, classes, _ = digits
    recipe = RECIPES[name].fitted({"classes": classes})
    trainer, log = Trainer(Replica(recipe), RUN, shards), []
    Replica(recipe).save(tmp_path / "step0.safetensors")
    for step in range(STEPS):
        units = [Unit(step // 2, 0, UNIT * at, UNIT * (at + 1)) for at in range(5 * (step % 2), 5 * (step % 2) + 5)]
        takings = [take_units(trainer, units[first:stop]) for first, stop in GROUPS]
        log.append(commit(trainer.replica, weighted_mean(takings), takings))
    write_folder(tmp_path, recipe, shards, [to_lines(entry) for entry in log], [digest_of(entry) for entry in log])
    weights = image_reference.main(tmp_path)
    assert [piece.name for piece in trainer.replica.layout.pieces] == list(weights)
    flat = np.concatenate([tensor.numpy().ravel() for tensor in weights.values()])
    moved = float(np.abs(trainer.replica.parameters.numpy() - flat).max())
    print(f"{name}: max |dw| = {moved:.2e} after {STEPS} steps")
    assert moved <= BOUND
    assert float((trainer.replica.parameters - Replica(recipe).parameters).abs().max()) > 100 * BOUND


def write_folder(
    folder: Path, recipe: ImageRecipe, shards: list[Images], lines: list[bytes], digests: list[str]
) -> None:
    (folder / "records").mkdir()
    for content, digest in zip(lines, digests, strict=True):
        (folder / "records" / digest).write_bytes(content)
    (folder / "recipe.json").write_bytes(encode_recipe(recipe))
    for number, images in enumerate(shards):
        save_file(images._asdict(), folder / f"{number:064x}.safetensors")
    listed = [{"digest": f"{number:064x}"} for number in range(len(shards))]
    (folder / "shards.json").write_text(json.dumps(listed))
