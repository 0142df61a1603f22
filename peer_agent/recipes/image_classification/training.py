"""Train an image classifier."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, ResNetForImageClassification

from peer_agent.recipes.image_classification import ImageClassification
from peer_agent.recipes.images.pixels import Images, as_floats, load_shard, moved, shards_of, size_of
from peer_agent.recipes.images.resnet import (
    PREPROCESSING,
    config_of,
    initialise,
    recalibrate,
    whole_images,
    write_preprocessing,
)
from peer_agent.recipes.training import Batch, Place, Samples, chance_of

__all__ = ["load_shard", "size_of"]


def build_model(recipe: ImageClassification) -> PreTrainedModel:
    names = dict(enumerate(recipe.classes or ("?",)))
    config = config_of(recipe, id2label=names, label2id={name: number for number, name in names.items()})
    model = ResNetForImageClassification(config)
    initialise(model, recipe.seed)
    return model


def batch_of(recipe: ImageClassification, shard: Images, samples: Samples, place: Place) -> Batch:
    """Return augmented images [samples, side, side, 3] and their classes [samples]."""
    by = int(recipe.shift * recipe.side)
    images = [
        moved(shard.pixels[sample], chance_of(place, int(sample)), by=by, may_flip=bool(recipe.flip))
        for sample in samples
    ]
    return np.stack(images), shard.labels[samples].astype(np.int64)


def loss_units_in(batch: Batch) -> int:
    return len(batch[0])


def summed_loss(
    recipe: ImageClassification, model: torch.nn.Module, batch: Batch, device: torch.device
) -> torch.Tensor:
    del recipe
    pixels, labels = torch.from_numpy(as_floats(batch[0])).to(device), torch.from_numpy(batch[1]).to(device)
    return functional.cross_entropy(model(pixel_values=pixels).logits, labels, reduction="sum")


@torch.no_grad()
def figures_of(
    recipe: ImageClassification, model: torch.nn.Module, heldout: Images, loss: float, most: int
) -> Mapping[str, float]:
    """Return the accuracy on held-out images, without augmentation."""
    del loss
    named = [model(pixel_values=pixels).logits.argmax(dim=-1) for pixels in whole_images(recipe, heldout, most)]
    found = torch.cat(named).numpy()
    return {"accuracy": float((found == heldout.labels[: len(found)]).mean())}


def save_model(recipe: ImageClassification, model: PreTrainedModel, data: Path, out: Path) -> tuple[str, ...]:
    recalibrate(model, shards_of(data / "shards"))
    model.save_pretrained(out)
    write_preprocessing(recipe, out)
    return ("config.json", "model.safetensors", PREPROCESSING)


def sample_of(folder: Path) -> str:
    del folder
    return ""
