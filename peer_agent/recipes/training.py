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

NO_FILES = Path()  # for a recipe that names none
Shard = Any  # the result of a recipe's own `load_shard`
Samples = NDArray[np.int64]  # sample numbers in a shard
Batch = tuple[NDArray[Any], ...]  # arrays with a row per sample


class Place(Struct, frozen=True):
    """The source of samples. Randomness in a batch is keyed by it and by the sample (rule 33)."""

    run: RunId
    epoch: int
    shard: int


HELD_OUT = Place(RunId("0" * 32), 0, 0)  # the same for every snapshot of every run


class Training(Protocol):
    """The functions that the module `Recipe.training` defines. The recipe passed is always of its kind."""

    def build_model(self, recipe: Any, *files: Path) -> "torch.nn.Module":
        """Return a fresh model in fp32, the same on every machine. No download, no remote code, no dropout.

        `files` is the folder of `<digest>.safetensors` if the recipe names files, else absent. Fixed parameters have no
        `requires_grad`.
        """

    def load_shard(self, path: Path) -> Shard:
        """Return the content of a data file. Raises Problem E111 if it is malformed."""

    def size_of(self, shard: Shard) -> int:
        """Return a shard's size in the unit of `Recipe.samples_in`."""

    def batch_of(self, recipe: Any, shard: Shard, samples: Samples, place: Place) -> Batch:
        """Return these samples as model input."""

    def loss_units_in(self, batch: Batch) -> int:
        """Return the number of loss units in a batch."""

    def summed_loss(
        self, recipe: Any, model: "torch.nn.Module", batch: Batch, device: "torch.device"
    ) -> "torch.Tensor":
        """Return the nats summed over the loss units of a batch."""

    def figures_of(
        self, recipe: Any, model: "torch.nn.Module", heldout: Shard, loss: float, most: int
    ) -> Mapping[str, float]:
        """Return named figures by which people judge the model, on the first `most` held-out samples.

        `loss` is the known mean loss. A figure called accuracy is a fraction. Use small batches: it runs on the site's
        CPU.
        """

    def written(self, recipe: Any, model: "torch.nn.Module", data: Path, prompts: Sequence[str]) -> list[str]:
        """Return a model's continuation of each prompt, if its recipe `writes`; `data` is that of `save_model`."""

    def save_model(self, recipe: Any, model: "torch.nn.Module", data: Path, out: Path) -> Sequence[str]:
        """Write a loadable release and return its file names; `data` is the prepared data."""

    def sample_of(self, folder: Path) -> str:
        """Return a short sample text by a released model, "" if it writes none."""


def training_of(recipe: Recipe) -> Training:
    return cast("Training", importlib.import_module(recipe.training))


def model_of(recipe: Recipe, files: Path = NO_FILES) -> "torch.nn.Module":
    """Return a fresh model; `files` is the folder of the files that its recipe names."""
    return training_of(recipe).build_model(recipe, *([files] if recipe.files() else ()))


def heldout_batches(recipe: Recipe, heldout: Shard, *, most: float = math.inf) -> Iterator[Batch]:
    """Yield the first `most` held-out samples, a micro-batch at a time."""
    kind = training_of(recipe)
    samples = np.arange(recipe.samples_in(kind.size_of(heldout)))
    for start in range(0, int(min(len(samples), most)), recipe.micro_batch):
        yield kind.batch_of(recipe, heldout, samples[start : start + recipe.micro_batch], HELD_OUT)


def chance_of(place: Place, sample: int) -> np.random.Generator:
    """Return a random generator keyed by run, epoch, shard and sample, the same on every machine (rule 33)."""
    key = hashlib.sha256(f"{place.run}/{place.epoch}/{place.shard}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))


def write_json(path: Path, content: object) -> None:
    """Write readable JSON, the same bytes each time."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
