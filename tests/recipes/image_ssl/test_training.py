"""SwAV: assignments and loss compared with plain versions, changes by committed step, and the released model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from numpy.typing import NDArray
from PIL import Image
from scipy.special import log_softmax

from demo.recipes import digits_tar
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.recipe import OutOfBounds, checked
from peer_agent.recipes.image_ssl import PAPER, ImageSSL, Multicrop
from peer_agent.recipes.image_ssl.training import (
    DECAY,
    Labelled,
    SwAV,
    _fitted,
    assignments,
    batch_of,
    build_model,
    cut,
    probe_accuracy,
    save_model,
    summed_loss,
)
from peer_agent.recipes.images.pixels import Images, as_floats, shards_of
from peer_agent.recipes.images.trunk import Family, Trunk
from peer_agent.recipes.training import Batch, Place
from peer_agent.site_work.prepare_images import prepare
from peer_agent.training.loop import Trainer
from peer_agent.training.model import layout_of
from peer_agent.training.replica import Replica
from tests.training.commits import commit, take_units, weighted_mean

CPU = torch.device("cpu")
RUN = RunId("ab" * 16)
HERE = Place(RUN, 1, 0)
SMALL = ImageSSL(
    trunk=Trunk(family="resnet10", width=8),
    micro_batch=8,
    target_batch=16,
    hidden=24,
    projection=16,
    prototypes=12,
    frozen_steps=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "digits.tar").write_bytes(digits_tar())
    prepare(folder / "digits.tar", folder, SMALL.preparation())
    return folder


@pytest.fixture(scope="module")
def shard(folder: Path) -> Images:
    return next(shards_of(folder / "shards"))


def cut_all(images: NDArray[np.uint8], crops: NDArray[np.float32], side: int = 32) -> torch.Tensor:
    """Cut crops [n, c, columns], each from its own image [n, c, s, s, 3], in order."""
    pixels = torch.from_numpy(images).flatten(0, 1).permute(0, 3, 1, 2).float().div(255)
    return cut(pixels, torch.from_numpy(crops).flatten(0, 1), side)


def scores_of(model: SwAV, recipe: ImageSSL, batch: Batch) -> list[NDArray[np.float64]]:
    images, crops = batch
    each = [
        cut_all(images[:, :1], crops[:, at : at + 1], recipe.crops.large_side if at < 2 else recipe.crops.small_side)
        for at in range(recipe.crops.count)
    ]
    scores = model([torch.cat(each[:2]), torch.cat(each[2:])]).double().numpy()
    return np.split(scores, recipe.crops.count)


def plain_assignments(scores: NDArray[np.float64], sharpness: float, steps: int) -> NDArray[np.float64]:
    """Return assignments as in listing 1 of the paper, in float64."""
    q = np.exp(scores / sharpness).T
    q /= q.sum()
    prototypes, rows = q.shape
    for _ in range(steps):
        q *= (1 / prototypes / q.sum(axis=1))[:, None]
        q *= (1 / rows / q.sum(axis=0))[None]
    found: NDArray[np.float64] = (q / q.sum(axis=0)).T
    return found


@pytest.mark.parametrize(("steps", "sharpness"), [(1, 0.05), (3, 0.03), (20, 1.0)])
def test_assignments_are_those_of_the_paper(steps: int, sharpness: float) -> None:
    scores = np.random.Generator(np.random.Philox(1)).uniform(-1, 1, (64, 30))
    recipe = replace(SMALL, sinkhorn_steps=steps, sharpness=sharpness)
    found = assignments(recipe, torch.from_numpy(scores).float()).double().numpy()
    np.testing.assert_allclose(found, plain_assignments(scores, sharpness, steps), atol=2e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    if steps == 20:
        np.testing.assert_allclose(found.sum(axis=0), 64 / 30, rtol=1e-3)


def test_fresh_model_finds_prototypes_hardly_better_than_chance(shard: Images) -> None:
    recipe = replace(SMALL, prototypes=3000, projection=128)
    batch = batch_of(recipe, shard, np.arange(8), HERE)
    loss = float(summed_loss(recipe, build_model(recipe), batch, CPU).detach())
    assert loss / recipe.loss_units_in(8)[0] == pytest.approx(np.log(3000), rel=0.1)


def test_a_unit_needs_nothing_that_was_computed_before_it(shard: Images) -> None:
    """A unit uses neither the machine's statistics nor a queue of its own, so recomputing the unit gives the same
    loss.
    """
    recipe, losses = replace(SMALL, queue=3), []
    for before in ([], [Unit(0, 0, 8, 16), Unit(0, 0, 16, 24)]):
        trainer = Trainer(Replica(recipe), RUN, [shard])
        for unit in before:
            trainer.compute(unit)
        done: Any = trainer.compute(Unit(0, 0, 0, 8))
        losses.append(done.loss_sum)
    assert losses[0] == losses[1]


def test_queue_starts_at_its_step_and_affects_only_assignments(shard: Images) -> None:
    recipe = replace(SMALL, queue=4, queue_from=3)
    assert [recipe.at(step).queue for step in (0, 2, 3, 9)] == [0, 0, 4, 4]
    model = build_model(recipe)
    with_queue, without = (batch_of(recipe.at(step), shard, np.arange(8), HERE) for step in (3, 2))
    assert (with_queue[0].shape[1], without[0].shape[1]) == (5, 1)
    assert np.array_equal(with_queue[1][:, : recipe.crops.count], without[1]), "the same crops"
    with torch.no_grad():
        queued = model([cut_all(with_queue[0][:, 1:], with_queue[1][:, recipe.crops.count :])]).double().numpy()
        own = scores_of(model, recipe, without)
    expected = sum(
        -(plain_assignments(np.concatenate([queued, own[at]]), recipe.sharpness, 3)[-8:] * logs).sum()
        for at in (0, 1)
        for number, logs in enumerate(log_softmax(scores / recipe.temperature, axis=1) for scores in own)
        if number != at
    )
    losses = [
        float(summed_loss(recipe.at(step), model, batch, CPU).detach())
        for step, batch in ((3, with_queue), (2, without))
    ]
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.2)


def test_trainer_uses_the_recipe_of_the_step_it_computes_on(shard: Images) -> None:
    recipe = replace(SMALL, queue=4, queue_from=1)
    trainer = Trainer(Replica(recipe), RUN, [shard])
    taken = take_units(trainer, [Unit(0, 0, 0, 8)])
    plain = take_units(Trainer(Replica(replace(recipe, queue=0)), RUN, [shard]), [Unit(0, 0, 0, 8)])
    assert taken.loss_sum == plain.loss_sum
    commit(trainer.replica, weighted_mean([taken]), [taken])
    later, other = Trainer(trainer.replica, RUN, [shard]), replace(recipe, queue=0)
    with_queue: Any = later.compute(Unit(0, 0, 0, 8))
    trainer.replica.recipe = other
    without: Any = Trainer(trainer.replica, RUN, [shard]).compute(Unit(0, 0, 0, 8))
    assert with_queue.loss_sum != without.loss_sum


def test_prototypes_are_frozen_for_some_steps_and_have_length_1(shard: Images) -> None:
    trainer = Trainer(Replica(SMALL), RUN, [shard])
    replica = trainer.replica
    piece = next(piece for piece in replica.layout.pieces if piece.name == "prototypes.weight")
    first, moved = piece.of(replica.parameters).clone(), []
    for step in range(4):
        taken = take_units(trainer, [Unit(0, 0, 8 * step, 8 * step + 8)])
        is_none = not taken.gradient_sum[piece.start : piece.stop].any()
        assert is_none == (step < 2), "no part in the norm that gradients are clipped by"
        # Another machine may send other values. Frozen parameters do not change by them.
        average = weighted_mean([taken])
        average[piece.start : piece.stop] += np.float32(0.5) * np.arange(piece.stop - piece.start)
        commit(replica, average, [taken])
        moved.append(not torch.equal(piece.of(replica.parameters), first))
        lengths = piece.of(replica.parameters).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), atol=1e-6, rtol=0)
    assert moved == [False, False, True, True]
    assert piece.of(replica.moment1).any()


@pytest.mark.parametrize("family", ["resnet10", "resnet50"])
def test_parameters_are_counted_exactly(family: Family) -> None:
    recipe = replace(SMALL, trunk=Trunk(family=family, width=8))
    assert recipe.parameters() == layout_of(build_model(recipe)).elements


def test_the_papers_values_are_within_their_bounds() -> None:
    assert checked(PAPER).parameters() == pytest.approx(28_400_000, rel=0.01)
    assert PAPER.loss_units_in(64) == (64 * 2 * 7, 64 * 2 * 7)
    with pytest.raises(OutOfBounds, match="small crops is below"):
        checked(replace(SMALL, crops=Multicrop(small_least=0.5, small_most=0.3)))


def test_without_small_crops_each_large_one_finds_the_other(shard: Images) -> None:
    recipe = replace(SMALL, crops=Multicrop(small=0))
    batch, model = batch_of(recipe, shard, np.arange(8), HERE), build_model(recipe)
    assert recipe.loss_units_in(8) == (16, 16)
    images = torch.from_numpy(batch[0][:, 0]).permute(0, 3, 1, 2).float().div(255)
    crops = torch.from_numpy(batch[1])
    with torch.no_grad():
        scores = model([torch.cat([cut(images, crops[:, number], 32) for number in (0, 1)])]).double().numpy()
    first, second = scores[:8], scores[8:]
    expected = sum(
        -(plain_assignments(own, recipe.sharpness, 3) * log_softmax(other / recipe.temperature, axis=1)).sum()
        for own, other in ((first, second), (second, first))
    )
    assert float(summed_loss(recipe, model, batch, CPU).detach()) == pytest.approx(expected, rel=1e-4)


def test_a_release_makes_features_as_its_card_says(folder: Path, shard: Images, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = build_model(SMALL)
    assert save_model(SMALL, model, folder, tmp_path) == (
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    )
    Image.fromarray(shard.pixels[0]).save(tmp_path / "an-image.png")
    said = SMALL.usage(repr(str(tmp_path))).replace('"an-image.png"', repr(str(tmp_path / "an-image.png")))
    scope: dict[str, Any] = {}
    exec(said.rsplit("\n", 1)[0], scope)  # all lines except the last, which prints
    found = scope["features"](str(tmp_path / "an-image.png"))
    alone: Any = transformers.ResNetModel.from_pretrained(tmp_path, local_files_only=True)
    with torch.no_grad():
        expected = alone(pixel_values=torch.from_numpy(as_floats(shard.pixels[:1]))).pooler_output.flatten()
    np.testing.assert_allclose(np.array(found).ravel(), expected.numpy(), atol=1e-4)
    assert expected.numel() == SMALL.trunk.features
    assert all(buffer.abs().sum() > 0 for name, buffer in alone.named_buffers() if name.endswith("running_mean"))


CLASSES, FEATURES = 5, 12


def drawn(seed: int, images: int, spread: float) -> Labelled:
    """Draw clouds of points around one centre per class, along axes of different scales."""
    centres = np.random.Generator(np.random.Philox(1)).standard_normal((CLASSES, FEATURES))
    chance = np.random.Generator(np.random.Philox(seed))
    labels = chance.integers(0, CLASSES, images)
    points = centres[labels] + spread * chance.standard_normal((images, FEATURES))
    scales = 10.0 ** np.arange(-4, FEATURES - 4)
    return Labelled((points * scales + 3 * scales).astype(np.float32), labels)


@pytest.mark.parametrize(("spread", "least", "most"), [(0.1, 1.0, 1.0), (1.5, 0.6, 0.95), (50.0, 0.1, 0.35)])
def test_it_names_what_lies_apart(spread: float, least: float, most: float) -> None:
    accuracy = probe_accuracy(drawn(2, 600, spread), drawn(3, 400, spread))
    assert least <= accuracy <= most
    assert accuracy == probe_accuracy(drawn(2, 600, spread), drawn(3, 400, spread))


def test_it_is_measured_on_what_it_has_not_learned() -> None:
    few, others = drawn(2, 20, 20.0), drawn(3, 400, 20.0)
    assert probe_accuracy(few, few) == 1.0
    assert probe_accuracy(few, others) < 0.5


def test_a_feature_that_never_changes_changes_nothing() -> None:
    def widened(of: Labelled) -> Labelled:
        return Labelled(np.hstack([of.features, np.full((len(of.labels), 1), 7, np.float32)]), of.labels)

    learned, held = drawn(2, 300, 1.5), drawn(3, 200, 1.5)
    assert probe_accuracy(widened(learned), widened(held)) == probe_accuracy(learned, held)


def test_no_small_move_of_the_weights_is_better() -> None:
    chance = np.random.Generator(np.random.Philox(4))
    features, labels = chance.standard_normal((80, 4)), chance.integers(0, 3, 80)
    weights = _fitted(features, labels)

    def loss(of: NDArray[np.float64]) -> float:
        scores = features @ of
        right = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(80), labels]
        return float(right.mean() + DECAY * (of**2).sum() / 2)

    moves = [1e-2 * chance.standard_normal(weights.shape) for _ in range(50)]
    assert all(loss(weights) < loss(weights + move) for move in moves)


def test_nothing_is_nothing_to_learn_from() -> None:
    some, none = drawn(2, 10, 1.0), Labelled(np.zeros((0, FEATURES), np.float32), np.zeros(0, np.int64))
    for learned, held in ((some, none), (none, some)):
        with pytest.raises(ValueError, match="a probe needs"):
            probe_accuracy(learned, held)
