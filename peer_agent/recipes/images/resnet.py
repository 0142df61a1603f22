"""A transformers ResNet with our initial values.

In training, it normalizes by the statistics of each batch. A released model normalizes by running statistics.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import PreTrainedModel, ResNetConfig

from peer_agent.recipes.images.pixels import Images, as_floats
from peer_agent.recipes.images.preparation import ImagePreparation
from peer_agent.recipes.images.recipe import ImageRecipe
from peer_agent.recipes.images.trunk import COLOURS, DEPTHS
from peer_agent.recipes.initial import draw_normal
from peer_agent.recipes.training import write_json

AT_A_TIME = 64  # images per batch when a release's running statistics are computed
JUDGED = 4096  # maximum number of held-out images evaluated
RECALIBRATED = ImagePreparation.least_beside // AT_A_TIME  # batches used for a release's running statistics


def config_of(recipe: ImageRecipe, **more: Any) -> ResNetConfig:
    trunk = recipe.trunk
    return ResNetConfig(
        num_channels=COLOURS,
        embedding_size=trunk.width,
        hidden_sizes=list(trunk.sizes),
        depths=list(DEPTHS[trunk.family]),
        layer_type="bottleneck" if trunk.has_bottlenecks else "basic",
        **more,
    )


def initialise(model: torch.nn.Module, seed: int) -> None:
    """Set initial values, and turn off running statistics.

    Convolutions are initialized by He's method (arXiv 1502.01852), matrices with a standard deviation of 0.01, and
    biases with zeros.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 4:
            kernel = parameter.shape[0] * parameter.shape[2] * parameter.shape[3]
            draw_normal(parameter, seed=seed, name=name, spread=math.sqrt(2 / kernel))
        elif parameter.ndim == 2:
            draw_normal(parameter, seed=seed, name=name, spread=0.01)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    for norm in _norms_of(model):
        norm.track_running_stats = False  # running statistics would differ between machines


def _norms_of(model: torch.nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def whole_images(recipe: ImageRecipe, images: Images, most: int) -> Iterator[torch.Tensor]:
    """Yield the first held-out images as whole units [micro batch, 3, side, side].

    The model normalizes each unit by that unit's own statistics.
    """
    for start in range(0, min(recipe.samples_in(len(images.labels)), JUDGED, most), recipe.micro_batch):
        yield torch.from_numpy(as_floats(images.pixels[start : start + recipe.micro_batch]))


def recalibrate(model: PreTrainedModel, shards: Iterable[Images]) -> None:
    """Compute the running statistics that the model needs to process single images.

    They are means over the same batches each time, so repeated calls agree except for rounding.
    """
    for norm in _norms_of(model):
        norm.reset_running_stats()
        norm.track_running_stats, norm.momentum = True, None  # take a plain mean over batches
    model.train()
    with torch.no_grad():
        for batch in itertools.islice(_batches(shards), RECALIBRATED):
            model(pixel_values=torch.from_numpy(as_floats(batch)))
    model.eval()  # type: ignore[no-untyped-call]


def _batches(shards: Iterable[Images]) -> Iterable[Any]:
    for shard in shards:
        for start in range(0, len(shard.pixels), AT_A_TIME):
            batch = shard.pixels[start : start + AT_A_TIME]
            if len(batch) > 1 or not start:
                yield np.repeat(batch, 2, axis=0) if len(batch) == 1 else batch


PREPROCESSING = "preprocessor_config.json"
BICUBIC = 3  # Pillow's number for the bicubic filter


def write_preprocessing(recipe: ImageRecipe, out: Path) -> None:
    """Write the settings with which transformers prepares images as the site does.

    They scale the shorter side, crop the center, and map values to -1 to 1.
    """
    middle = [0.5] * COLOURS
    write_json(
        out / PREPROCESSING,
        {
            "image_processor_type": "CLIPImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": recipe.side},
            "resample": BICUBIC,
            "do_center_crop": True,
            "crop_size": {"height": recipe.side, "width": recipe.side},
            "do_convert_rgb": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": middle,
            "image_std": middle,
        },
    )
