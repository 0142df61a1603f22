"""What of a recipe needs torch: its model, its batches and chance in them, its loss, what a release of it holds."""

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

NO_FILES = Path()  # of a recipe that names none
Shard = Any  # what a recipe's own `load_shard` made of a file
Samples = NDArray[np.int64]  # numbers of samples of a shard
Batch = tuple[NDArray[Any], ...]  # arrays with a row for each sample


class Place(Struct, frozen=True):
    """Where samples are taken from. Chance in a batch is keyed by it and by the sample (rule 33)."""

    run: RunId
    epoch: int
    shard: int


HELD_OUT = Place(RunId("0" * 32), 0, 0)  # the same chance for every snapshot of every run


class Training(Protocol):
    """What the module `Recipe.training` of a kind of recipe defines. The recipe given is always of that kind."""

    def build_model(self, recipe: Any, *files: Path) -> "torch.nn.Module":
        """A fresh model in fp32, the same on every machine. No download, no remote code, no dropout.

        `files`: of a recipe that names some, the folder in which each lies as `<digest>.safetensors`; else nothing.
        Parameters that do not learn have no `requires_grad`, and stay as they are.
        """

    def load_shard(self, path: Path) -> Shard:
        """What a file of data holds. Raises Problem E111 where it is not one."""

    def size_of(self, shard: Shard) -> int:
        """In what `Recipe.samples_in` counts."""

    def batch_of(self, recipe: Any, shard: Shard, samples: Samples, place: Place) -> Batch:
        """These samples as the model takes them."""

    def loss_units_in(self, batch: Batch) -> int:
        """How many loss units a batch has."""

    def summed_loss(
        self, recipe: Any, model: "torch.nn.Module", batch: Batch, device: "torch.device"
    ) -> "torch.Tensor":
        """Nats, summed over the loss units of a batch."""

    def figures_of(
        self, recipe: Any, model: "torch.nn.Module", heldout: Shard, loss: float, most: int
    ) -> Mapping[str, float]:
        """What people judge such a model by, by name, on held-out data of which the mean loss is known: its first
        `most` samples, as far as it looks at samples.

        A figure called accuracy is a share. Few samples at a time: it is measured on the site's processor.
        """

    def written(self, recipe: Any, model: "torch.nn.Module", data: Path, prompts: Sequence[str]) -> list[str]:
        """What a model writes after each prompt, where its recipe says that it `writes`; `data` as of `save_model`."""

    def save_model(self, recipe: Any, model: "torch.nn.Module", data: Path, out: Path) -> Sequence[str]:
        """Write what people load a released model from; the names of the files. `data`: what was prepared with them."""

    def sample_of(self, folder: Path) -> str:
        """A few words to show, by a released model that is loaded as anyone would; empty where it writes none."""


def training_of(recipe: Recipe) -> Training:
    """The rest of a kind of recipe."""
    return cast("Training", importlib.import_module(recipe.training))


def model_of(recipe: Recipe, files: Path = NO_FILES) -> "torch.nn.Module":
    """A fresh model. `files`: the folder of those that its recipe names."""
    return training_of(recipe).build_model(recipe, *([files] if recipe.files() else ()))


def heldout_batches(recipe: Recipe, heldout: Shard, *, most: float = math.inf) -> Iterator[Batch]:
    """Held-out samples, a micro-batch at a time, from the first on, until there are `most` of them."""
    kind = training_of(recipe)
    samples = np.arange(recipe.samples_in(kind.size_of(heldout)))
    for start in range(0, int(min(len(samples), most)), recipe.micro_batch):
        yield kind.batch_of(recipe, heldout, samples[start : start + recipe.micro_batch], HELD_OUT)


def chance_of(place: Place, sample: int) -> np.random.Generator:
    """Chance in a batch, the same on every machine (rule 33): keyed by run, epoch, shard and sample."""
    key = hashlib.sha256(f"{place.run}/{place.epoch}/{place.shard}/{sample}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")))


def write_json(path: Path, content: object) -> None:
    """Readable JSON, the same bytes each time."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
