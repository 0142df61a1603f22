"""The parts of a recipe that need torch: its model, batches, randomness, loss, and release."""

import hashlib
import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.recipe import Recipe

if TYPE_CHECKING:
    import torch

NO_FILES = Path()  # the folder for a recipe that names no files
Shard = Any  # what a recipe's `load_shard` returns
Samples = NDArray[np.int64]  # numbers of samples in a shard
Batch = tuple[NDArray[Any], ...]  # arrays with one row per sample


class Place(Struct, frozen=True):
    """The run, epoch and shard that samples belong to.

    All randomness in a batch is keyed by a sample's place and number (rule 33).
    """

    run: RunId
    epoch: int
    shard: int


HELD_OUT = Place(RunId("0" * 32), 0, 0)  # the place of held-out samples, the same for all snapshots of all runs


class Training(Protocol):
    """The functions that a recipe's training module must define. `Recipe.training` names this module."""

    def build_model(self, recipe: Any, *files: Path) -> "torch.nn.Module":
        """Build a model in fp32, the same on every machine, without downloads, remote code or dropout.

        `files`: the folder that contains `<digest>.safetensors`. It is passed only if the recipe names files.
        Parameters that are not trained have `requires_grad` False.
        """

    def load_shard(self, path: Path) -> Shard:
        """Return the content of a shard's file. Raises Problem E111 if the file is malformed."""

    def size_of(self, shard: Shard) -> int:
        """Return a shard's size, in the unit that `Recipe.samples_in` expects."""

    def batch_of(self, recipe: Any, shard: Shard, samples: Samples, place: Place) -> Batch:
        """Return the samples with these numbers as model input."""

    def loss_units_in(self, batch: Batch) -> int:
        """Return the number of loss units in a batch, such as tokens or images."""

    def summed_loss(
        self, recipe: Any, model: "torch.nn.Module", batch: Batch, device: "torch.device"
    ) -> "torch.Tensor":
        """Return the loss in nats, summed over a batch's loss units."""

    def figures_of(
        self, recipe: Any, model: "torch.nn.Module", heldout: Shard, loss: float, most: int
    ) -> Mapping[str, float]:
        """Return named measures of the model's quality on the first `most` held-out samples. `loss`: the mean held-out
        loss. A measure whose name ends in "accuracy" is a fraction. Use small batches, because this runs on the site's
        CPU.
        """

    def written(self, recipe: Any, model: "torch.nn.Module", data: Path, prompts: Sequence[str]) -> list[str]:
        """Return the model's continuation of each prompt. Called only if `recipe.writes` is True."""

    def save_model(self, recipe: Any, model: "torch.nn.Module", data: Path, out: Path) -> Sequence[str]:
        """Write a release that transformers can load, and return its file names. `data`: the prepared data."""

    def sample_of(self, folder: Path) -> str:
        """Return a short text that a released model writes, or "" if the model does not write."""


def training_of(recipe: Recipe) -> Training:
    return cast("Training", importlib.import_module(recipe.training))


def model_of(recipe: Recipe, files: Path = NO_FILES) -> "torch.nn.Module":
    """Build a new model for a recipe. `files`: the folder with the files that the recipe names."""
    return training_of(recipe).build_model(recipe, *([files] if recipe.files() else ()))


def heldout_batches(recipe: Recipe, heldout: Shard, *, most: float = math.inf) -> Iterator[Batch]:
    """Yield batches of the first `most` held-out samples, rounded up to whole micro-batches."""
    kind = training_of(recipe)
    samples = np.arange(recipe.samples_in(kind.size_of(heldout)))
    for start in range(0, int(min(len(samples), most)), recipe.micro_batch):
        yield kind.batch_of(recipe, heldout, samples[start : start + recipe.micro_batch], HELD_OUT)


def chance_of(place: Place, sample: int) -> np.random.Generator:
    """Return a random generator keyed by run, epoch, shard and sample. It is the same on every machine (rule 33)."""
    key = hashlib.sha256(f"{place.run}/{place.epoch}/{place.shard}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))


def write_json(path: Path, content: object) -> None:
    """Write readable JSON. Equal content gives equal bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
