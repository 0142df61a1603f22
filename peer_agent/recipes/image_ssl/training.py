"""Train with SwAV (arXiv 2006.09882)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import kornia.color
import kornia.enhance
import kornia.filters
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import nn
from torch.nn import functional
from transformers import ResNetModel

from peer_agent.recipes.image_ssl import LARGE, ImageSSL
from peer_agent.recipes.images.crops import (
    BRIGHTNESS,
    CONTRAST,
    GREY,
    HUE,
    SATURATION,
    SIGMA,
    SIGMA_MOST,
    Crops,
    drawn_crops,
)
from peer_agent.recipes.images.pixels import Images, load_shard, shards_of, size_of
from peer_agent.recipes.images.resnet import (
    PREPROCESSING,
    config_of,
    initialise,
    recalibrate,
    whole_images,
    write_preprocessing,
)
from peer_agent.recipes.initial import draw_directions, draw_normal
from peer_agent.recipes.training import Batch, Place, Samples, chance_of

# Crops are cut and recolored on the model's device.

WIDE = 3  # radius of a blur in sigmas; a larger radius makes no visible difference


def cut(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    """Cut crops [n, columns] from images [n, 3, s, s] with values from 0 to 1.

    Return images [n, 3, side, side] with values from -1 to 1.
    """
    with torch.autocast(images.device.type, enabled=False):  # else crops would depend on the device's precision
        return _coloured(_boxes(images, crops, side), crops, side) * 2 - 1


def _boxes(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    left, top, width, height, is_mirrored, *_ = crops.unbind(1)
    zero = torch.zeros_like(left)
    across = torch.stack([width * (1 - 2 * is_mirrored), zero, 2 * left + width - 1], dim=1)
    down = torch.stack([zero, height, 2 * top + height - 1], dim=1)
    size = [len(crops), images.shape[1], side, side]
    grid = functional.affine_grid(torch.stack([across, down], dim=1), size, align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _coloured(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    images = kornia.enhance.adjust_brightness_accumulative(images, crops[:, BRIGHTNESS])
    images = kornia.enhance.adjust_contrast_with_mean_subtraction(images, crops[:, CONTRAST])
    images = kornia.enhance.adjust_saturation_with_gray_subtraction(images, crops[:, SATURATION])
    images = kornia.enhance.adjust_hue(images, crops[:, HUE] * (2 * math.pi))
    grey = kornia.color.rgb_to_grayscale(images).expand_as(images)
    images = torch.where(_each(crops[:, GREY]) > 0, grey, images)
    return _blurred(images, crops[:, SIGMA] * side)


def _blurred(images: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Blur each image by its own `sigma`, in pixels. An image whose sigma is 0 stays unchanged."""
    radius = math.ceil(WIDE * SIGMA_MOST * images.shape[-1])
    wide = sigma.clamp(min=1e-3).unsqueeze(1).expand(-1, 2)
    blurred = kornia.filters.gaussian_blur2d(images, 2 * radius + 1, wide)
    return torch.where(_each(sigma) > 0, blurred, images)


def _each(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


# A linear probe (arXiv 1610.01644) measures how well a linear classifier finds the classes from the features.

DECAY = 1e-4  # weight decay, added to the mean loss
MOST_STEPS = 200


class Labelled(NamedTuple):
    """Features [images, features], and each image's class [images]."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]


def probe_accuracy(learned: Labelled, held: Labelled) -> float:
    """Train a softmax regression on `learned` and return its accuracy on `held`. The result is deterministic. Features
    are standardized with the mean and standard deviation of `learned`. Training takes at most MOST_STEPS steps, each in
    time proportional to images x features x classes. Raises ValueError if either set is empty.
    """
    if not learned.labels.size or not held.labels.size:
        raise ValueError("a probe needs images to learn from, and others to name")
    mean, deviation = learned.features.mean(axis=0), learned.features.std(axis=0)
    scaled = [_scaled(part.features, mean, deviation) for part in (learned, held)]
    weights = _fitted(scaled[0], learned.labels)
    return float((np.argmax(scaled[1] @ weights, axis=1) == held.labels).mean())


def _scaled(
    features: NDArray[np.float32], mean: NDArray[np.float32], deviation: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Standardize features and append a column of ones. A constant feature becomes 0."""
    steady = np.where(deviation > 0, deviation, np.inf)
    return np.hstack([(features - mean) / steady, np.ones((len(features), 1))]).astype(np.float64)


def _fitted(features: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weights [features, classes] that minimize the regularized mean loss."""
    classes = int(labels.max()) + 1
    wanted = np.eye(classes)[labels]

    def loss_of(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(-1, classes)
        found = log_softmax(features @ weights, axis=1)
        loss = -float((wanted * found).sum()) / len(labels) + DECAY * float((weights * weights).sum()) / 2
        slope = features.T @ (np.exp(found) - wanted) / len(labels) + DECAY * weights
        return loss, slope.ravel()

    begin = np.zeros(features.shape[1] * classes)
    found: NDArray[np.float64] = minimize(
        loss_of, begin, jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS}
    ).x
    return found.reshape(-1, classes)


__all__ = ["load_shard", "size_of"]


class SwAV(nn.Module):
    """A ResNet trunk, a two-layer head, and prototypes [prototypes, projection] of length 1."""

    def __init__(self, recipe: ImageSSL) -> None:
        super().__init__()
        self.trunk = ResNetModel(config_of(recipe))
        self.head = nn.Sequential(
            nn.Linear(recipe.trunk.features, recipe.hidden, bias=False),  # a bias is redundant before a normalization
            nn.BatchNorm1d(recipe.hidden),
            nn.ReLU(),
            nn.Linear(recipe.hidden, recipe.projection),
        )
        self.prototypes = nn.Linear(recipe.projection, recipe.prototypes, bias=False)

    def forward(self, crops: list[torch.Tensor]) -> torch.Tensor:
        """Return the scores [n, prototypes] of all crops.

        `crops` has one tensor [crops, 3, side, side] for each size. The trunk normalizes each of them as one batch.
        """
        features = [self.trunk(pixel_values=of_a_size).pooler_output.flatten(1) for of_a_size in crops]
        scores: torch.Tensor = self.prototypes(functional.normalize(self.head(torch.cat(features))))
        return scores


def build_model(recipe: ImageSSL) -> SwAV:
    model = SwAV(recipe)
    initialise(model, recipe.seed)
    _initialise_projection(model.head, recipe.seed)
    draw_directions(model.prototypes.weight, seed=recipe.seed, name="prototypes")
    return model


def _initialise_projection(head: nn.Sequential, seed: int) -> None:
    """Initialize the weights and biases of the head's linear layers with torch's usual standard deviation.

    Biases must not start at zero: with a norm of 0, LARC would not limit their step.
    """
    for name, values in head.named_parameters(prefix="head"):
        layer = head[int(name.split(".")[1])]
        if isinstance(layer, nn.Linear):
            draw_normal(values, seed=seed, name=name, spread=1 / math.sqrt(3 * layer.in_features))


def batch_of(recipe: ImageSSL, shard: Images, samples: Samples, place: Place) -> Batch:
    """Return images [samples, 1 + queue, side, side, 3] and crops [samples, crops + queue, columns].

    Each sample's own image comes first, before the queued images.
    """
    drawn = [_drawn(recipe, int(sample), len(shard.labels), place) for sample in samples]
    return shard.pixels[np.stack([images for images, _ in drawn])], np.stack([crops for _, crops in drawn])


def _drawn(recipe: ImageSSL, sample: int, images: int, place: Place) -> tuple[Samples, Crops]:
    """Draw a sample's crops, and the images for its queue.

    Return the numbers of the sample's own image and the queued images. Also return the large, small and queued crops,
    in this order.
    """
    chance, of, looks = chance_of(place, sample), recipe.crops, recipe.looks
    large = drawn_crops(chance, LARGE, of.large_least, of.large_most, looks)
    small = drawn_crops(chance, of.small, of.small_least, of.small_most, looks)
    queued = (chance.random(recipe.queue) * images).astype(np.int64)
    crops = drawn_crops(chance, recipe.queue, of.large_least, of.large_most, looks)
    return np.concatenate([np.array([sample]), queued]), np.concatenate([large, small, crops])


def loss_units_in(batch: Batch) -> int:
    """Return the number of (large crop, other crop) pairs from the same image."""
    (samples, images, *_), (_, crops, _) = (part.shape for part in batch)
    return int(samples * LARGE * (crops - (images - 1) - 1))


def summed_loss(recipe: ImageSSL, model: SwAV, batch: Batch, device: torch.device) -> torch.Tensor:
    """Return the summed loss in nats. Each crop's scores predict the assignments of the image's other large crops."""
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
    """Cut crops [n, c, columns] from images [n, 3, s, s]. Return [c * n, 3, side, side]: the first crops of all images,
    then the second crops, and so on.
    """
    count = crops.shape[1]
    return cut(images.repeat(count, 1, 1, 1), crops.transpose(0, 1).flatten(0, 1), side)


def _queue(recipe: ImageSSL, model: SwAV, images: torch.Tensor, crops: torch.Tensor) -> torch.Tensor:
    """Return the scores of the queued images' crops.

    These scores only affect the assignment, so they need no gradient.
    """
    if not images.shape[1]:
        return crops.new_zeros(0, recipe.prototypes)
    with torch.no_grad():
        scores: torch.Tensor = model([cut(images.flatten(0, 1), crops.flatten(0, 1), recipe.crops.large_side)])
        return scores.float()


@torch.no_grad()
def assignments(recipe: ImageSSL, scores: torch.Tensor) -> torch.Tensor:
    """Assign each row of `scores` [rows, prototypes] to prototypes, so that each prototype gets the same total weight.
    Uses Sinkhorn's algorithm (arXiv 2006.09882, listing 1).
    """
    rows, columns = scores.shape
    found = ((scores - scores.max()) / recipe.sharpness).exp()
    found = found / found.sum()
    for _ in range(recipe.sinkhorn_steps):
        found = found / (found.sum(dim=0, keepdim=True) * columns)
        found = found / (found.sum(dim=1, keepdim=True) * rows)
    return found * rows


@torch.no_grad()
def figures_of(recipe: ImageSSL, model: SwAV, heldout: Images, loss: float, most: int) -> Mapping[str, float]:
    """Train a linear probe on every other held-out image, and return its accuracy on the rest.

    Return {} if all held-out images belong to one class.
    """
    del loss
    if heldout.labels.max() == heldout.labels.min():
        return {}
    made = [model.trunk(pixel_values=pixels).pooler_output.flatten(1) for pixels in whole_images(recipe, heldout, most)]
    features = torch.cat(made).numpy()
    labels = heldout.labels[: len(features)].astype(np.int64)
    halves = [Labelled(features[start::2], labels[start::2]) for start in (0, 1)]
    return {"probe accuracy": probe_accuracy(*halves)}


def save_model(recipe: ImageSSL, model: SwAV, data: Path, out: Path) -> tuple[str, ...]:
    """Write only the trunk, as a transformers model that extracts features."""
    recalibrate(model.trunk, shards_of(data / "shards"))
    model.trunk.save_pretrained(out)
    write_preprocessing(recipe, out)
    return ("config.json", "model.safetensors", PREPROCESSING)


def sample_of(folder: Path) -> str:
    del folder
    return ""
