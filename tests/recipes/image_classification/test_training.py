"""The image classifier: batch statistics per unit, and a release that classifies one image at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from PIL import Image

from demo.recipes import digits_tar
from peer_agent.machine.hardware import FreeResources
from peer_agent.machine.preflight import RunFacts, check_fit
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import Unit
from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.image_classification.training import batch_of, build_model, save_model, size_of
from peer_agent.recipes.images.pixels import Images, as_floats, shards_of
from peer_agent.recipes.images.trunk import Trunk
from peer_agent.recipes.training import Place
from peer_agent.site_work.prepare_images import prepare
from peer_agent.training.loop import Trainer
from peer_agent.training.replica import Replica

PROCESSOR: Any = transformers.AutoImageProcessor
RUN = RunId("ab" * 16)
SMALL = ImageClassification(
    trunk=Trunk(family="resnet10", width=8), micro_batch=32, target_batch=32, shift=0.05, side=32
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageClassification, Path]:
    folder = tmp_path_factory.mktemp("digits")
    (folder / "digits.tar").write_bytes(digits_tar())
    made = prepare(folder / "digits.tar", folder, SMALL.preparation())
    return SMALL.fitted({"classes": made.classes}), folder


def test_a_unit_has_the_samples_that_its_statistics_are_of() -> None:
    assert [SMALL.samples_in(size) for size in (0, 1, 2, 31, 32, 33, 64, 95)] == [0, 0, 2, 31, 32, 32, 64, 64]


def test_what_a_machine_has_seen_before_does_not_count(digits: tuple[ImageClassification, Path]) -> None:
    """A unit leaves nothing in the model but its gradient."""
    recipe, folder = digits
    shards = [*shards_of(folder / "shards")]
    losses = []
    for before in ([], [Unit(0, 0, 32, 64), Unit(0, 0, 64, 96)]):
        trainer = Trainer(Replica(recipe), RUN, shards)
        for unit in before:
            trainer.compute(unit)
        done: Any = trainer.compute(Unit(0, 0, 0, 32))
        losses.append(done.loss_sum)
        assert all(not buffer.any() for name, buffer in trainer.replica.model.named_buffers() if "running_mean" in name)
    assert losses[0] == losses[1]
    assert losses[0] / 32 == pytest.approx(np.log(10), rel=0.2)


def test_memory_that_is_short_cuts_no_unit() -> None:
    facts = RunFacts(
        recipe=replace(SMALL, micro_batch=1024, target_batch=1024, side=256),
        parameters=10**5, data_bytes=0, snapshot_bytes=0, log_bytes=0, pace_s=None,
    )  # fmt: skip
    free = FreeResources(memory=2 * 10**9, gpu=None, disk=10**12)
    with pytest.raises(Problem, match="E123"):
        check_fit(facts, free, Path(), "cpu")
    text_free = FreeResources(memory=10**12, gpu=None, disk=10**12)
    assert check_fit(facts, text_free, Path(), "cpu").at_once == 0


def test_it_learns_and_its_release_names_one_image_at_a_time(
    digits: tuple[ImageClassification, Path], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    recipe, folder = digits
    model = build_model(recipe)
    shard = next(shards_of(folder / "shards"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(80):
        samples = (np.arange(32) + 32 * step) % size_of(shard)
        pixels, labels = batch_of(recipe, shard, samples, Place(RUN, step, 0))
        found = model(pixel_values=torch.from_numpy(as_floats(pixels)), labels=torch.from_numpy(labels))
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
    assert save_model(recipe, model, folder, tmp_path) == (
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    )
    heldout = Images(shard.pixels[-200:], shard.labels[-200:])
    assert accuracy(tmp_path, heldout) > 0.8


def accuracy(folder: Path, images: Images) -> float:
    """Return the accuracy that a user gets, one image at a time, with the image sizes and colours of the release
    itself.
    """
    model: Any = transformers.AutoModelForImageClassification.from_pretrained(folder, local_files_only=True)
    processor = PROCESSOR.from_pretrained(folder, local_files_only=True)
    names = json.loads((folder / "config.json").read_text())["id2label"]
    right = 0
    with torch.no_grad():
        for pixels, label in zip(*images, strict=True):
            larger = Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST)
            given = processor(larger, return_tensors="pt")
            found = int(model(**given).logits.argmax())
            right += names[str(found)] == str(label)
    return right / len(images.labels)


def test_release_prepares_images_as_they_were_in_training(
    digits: tuple[ImageClassification, Path], tmp_path: Path
) -> None:
    recipe, folder = digits
    save_model(recipe, build_model(recipe), folder, tmp_path)
    processor = PROCESSOR.from_pretrained(tmp_path, local_files_only=True)
    shard = next(shards_of(folder / "shards"))
    given = processor(Image.fromarray(shard.pixels[0]), return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(given, as_floats(shard.pixels[:1]), atol=1e-6)


def test_fresh_values_are_those_of_he() -> None:
    model = build_model(replace(SMALL, trunk=Trunk(family="resnet18", width=32), classes=("a", "b")))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4 and parameter.numel() > 5000:
            out, _, kernel, _ = parameter.shape
            assert float(parameter.detach().std()) == pytest.approx((2 / (out * kernel**2)) ** 0.5, rel=0.1), name
        if name.endswith("bias"):
            assert not parameter.any(), name
