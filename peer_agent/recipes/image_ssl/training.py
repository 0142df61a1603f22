"""SwAV in torch."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import ResNetModel

from peer_agent.recipes.chance import chance_of
from peer_agent.recipes.image_ssl import LARGE, ImageSSL
from peer_agent.recipes.images.crops import Crops, drawn_crops
from peer_agent.recipes.images.pixels import Images, load_shard, shards_of, size_of
from peer_agent.recipes.images.preprocessing import PREPROCESSING, write_preprocessing
from peer_agent.recipes.images.probe import Labelled, probe_accuracy
from peer_agent.recipes.images.resnet import config_of, initialise, recalibrate, whole_images
from peer_agent.recipes.images.views import cut
from peer_agent.recipes.initial import draw_directions, draw_normal
from peer_agent.recipes.training import Batch, Place, Samples

__all__ = ["load_shard", "size_of"]


class SwAV(nn.Module):
    """A trunk, two layers behind it, and prototypes [prototypes, projection] of length 1."""

    def __init__(self, recipe: ImageSSL) -> None:
        super().__init__()
        self.trunk = ResNetModel(config_of(recipe))
        self.head = nn.Sequential(
            nn.Linear(recipe.trunk.features, recipe.hidden, bias=False),  # what is normed needs none
            nn.BatchNorm1d(recipe.hidden),
            nn.ReLU(),
            nn.Linear(recipe.hidden, recipe.projection),
        )
        self.prototypes = nn.Linear(recipe.projection, recipe.prototypes, bias=False)

    def forward(self, crops: list[torch.Tensor]) -> torch.Tensor:
        """Scores [n, prototypes] of crops [., 3, side, side], a tensor for each size, which is normed at once."""
        features = [self.trunk(pixel_values=of_a_size).pooler_output.flatten(1) for of_a_size in crops]
        scores: torch.Tensor = self.prototypes(functional.normalize(self.head(torch.cat(features))))
        return scores


def build_model(recipe: ImageSSL) -> SwAV:
    """A freshly initialised model in fp32."""
    model = SwAV(recipe)
    initialise(model, recipe.seed)
    _initialise_projection(model.head, recipe.seed)
    draw_directions(model.prototypes.weight, seed=recipe.seed, name="prototypes")
    return model


def _initialise_projection(head: nn.Sequential, seed: int) -> None:
    """With torch's own spread, its bias too: a bias of zeros has no length, and LARC's step is without bound then."""
    for name, values in head.named_parameters(prefix="head"):
        layer = head[int(name.split(".")[1])]
        if isinstance(layer, nn.Linear):
            draw_normal(values, seed=seed, name=name, spread=1 / math.sqrt(3 * layer.in_features))


def batch_of(recipe: ImageSSL, shard: Images, samples: Samples, place: Place) -> Batch:
    """Images [samples, 1 + queue, side, side, 3], its own first, and crops [samples, crops + queue, columns]."""
    drawn = [_drawn(recipe, int(sample), len(shard.labels), place) for sample in samples]
    return shard.pixels[np.stack([images for images, _ in drawn])], np.stack([crops for _, crops in drawn])


def _drawn(recipe: ImageSSL, sample: int, images: int, place: Place) -> tuple[Samples, Crops]:
    """The images of a sample by number, and their crops: large ones, small ones, one of each in the queue."""
    chance, of, looks = chance_of(place, sample), recipe.crops, recipe.looks
    large = drawn_crops(chance, LARGE, of.large_least, of.large_most, looks)
    small = drawn_crops(chance, of.small, of.small_least, of.small_most, looks)
    queued = (chance.random(recipe.queue) * images).astype(np.int64)
    crops = drawn_crops(chance, recipe.queue, of.large_least, of.large_most, looks)
    return np.concatenate([np.array([sample]), queued]), np.concatenate([large, small, crops])


def loss_units_in(batch: Batch) -> int:
    """Pairs of a large crop and another one of its image."""
    (samples, images, *_), (_, crops, _) = (part.shape for part in batch)
    return int(samples * LARGE * (crops - (images - 1) - 1))


def summed_loss(recipe: ImageSSL, model: SwAV, batch: Batch, device: torch.device) -> torch.Tensor:
    """Nats of each large crop's assignment by every other crop's scores."""
    pixels, crops = (torch.from_numpy(part).to(device) for part in batch)
    images = pixels.permute(0, 1, 4, 2, 3).float().div(255)
    own, count = images[:, 0], recipe.crops.count
    sizes = ((0, LARGE, recipe.crops.large_side), (LARGE, count, recipe.crops.small_side))
    scores = model([_cut(own, crops[:, start:stop], side) for start, stop, side in sizes if stop > start]).float()
    by_crop = scores.view(count, len(own), -1)
    queue = _queue(recipe, model, images[:, 1:], crops[:, count:])
    loss: torch.Tensor = scores.new_zeros(())
    for assigned in range(LARGE):
        wanted = assignments(recipe, torch.cat([queue, by_crop[assigned].detach()]))[len(queue) :]
        others = [crop for crop in range(count) if crop != assigned]
        found = functional.log_softmax(by_crop[others] / recipe.temperature, dim=-1)
        loss = loss - (wanted * found).sum()
    return loss


def _cut(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    """Crops [n, c, columns] of images [n, 3, s, s], all first ones first: [c * n, 3, side, side]."""
    count = crops.shape[1]
    return cut(images.repeat(count, 1, 1, 1), crops.transpose(0, 1).flatten(0, 1), side)


def _queue(recipe: ImageSSL, model: SwAV, images: torch.Tensor, crops: torch.Tensor) -> torch.Tensor:
    """Scores of the images that only take part in the assignment."""
    if not images.shape[1]:
        return crops.new_zeros(0, recipe.prototypes)
    with torch.no_grad():
        scores: torch.Tensor = model([cut(images.flatten(0, 1), crops.flatten(0, 1), recipe.crops.large_side)])
        return scores.float()


@torch.no_grad()
def assignments(recipe: ImageSSL, scores: torch.Tensor) -> torch.Tensor:
    """Of each row to prototypes, so that all of these get as much: Sinkhorn (arXiv 2006.09882, listing 1)."""
    rows, columns = scores.shape
    found = ((scores - scores.max()) / recipe.sharpness).exp()
    found = found / found.sum()
    for _ in range(recipe.sinkhorn_steps):
        found = found / (found.sum(dim=0, keepdim=True) * columns)
        found = found / (found.sum(dim=1, keepdim=True) * rows)
    return found * rows


@torch.no_grad()
def figures_of(recipe: ImageSSL, model: SwAV, heldout: Images, loss: float, most: int) -> Mapping[str, float]:
    """What a linear probe that learns from every other image names of the rest; none where there are no classes."""
    del loss
    if heldout.labels.max() == heldout.labels.min():
        return {}
    made = [model.trunk(pixel_values=pixels).pooler_output.flatten(1) for pixels in whole_images(recipe, heldout, most)]
    features = torch.cat(made).numpy()
    labels = heldout.labels[: len(features)].astype(np.int64)
    halves = [Labelled(features[start::2], labels[start::2]) for start in (0, 1)]
    return {"probe accuracy": probe_accuracy(*halves)}


def save_model(recipe: ImageSSL, model: SwAV, data: Path, out: Path) -> tuple[str, ...]:
    """The folder of a transformers model that makes features of images: the trunk alone."""
    recalibrate(model.trunk, shards_of(data / "shards"))
    model.trunk.save_pretrained(out)
    write_preprocessing(recipe, out)
    return ("config.json", "model.safetensors", PREPROCESSING)


def sample_of(folder: Path) -> str:
    """It writes nothing."""
    del folder
    return ""
