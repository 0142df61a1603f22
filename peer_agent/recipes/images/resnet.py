"""A transformers ResNet with our initial values. It normalizes by batch statistics until it is released."""

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

AT_A_TIME = 64  # images per batch for a release's running statistics ...
JUDGED = 4096  # most held-out images evaluated
RECALIBRATED = ImagePreparation.least_beside // AT_A_TIME  # ... and how many batches these statistics use


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
    """Set initial values: He's method for convolutions (arXiv 1502.01852), small values for matrices, zeros for
    biases.
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
    """Yield the first held-out images in whole units [micro batch, 3, side, side], each with its own batch
    statistics.
    """
    for start in range(0, min(recipe.samples_in(len(images.labels)), JUDGED, most), recipe.micro_batch):
        yield torch.from_numpy(as_floats(images.pixels[start : start + recipe.micro_batch]))


def recalibrate(model: PreTrainedModel, shards: Iterable[Images]) -> None:
    """Set the running statistics, so that the model works on single images. They are means over fixed batches, so
    repeated calls agree except for rounding.
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
BICUBIC = 3  # this filter's number in Pillow


def write_preprocessing(recipe: ImageRecipe, out: Path) -> None:
    """Write settings that match the site's preprocessing: scale the shorter side, crop the centre, map values to -1 to
    1.
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
