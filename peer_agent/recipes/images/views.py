"""Crops of images as a model takes them, cut and coloured on its device."""

import math

import kornia.color
import kornia.enhance
import kornia.filters
import torch
from torch.nn import functional

from peer_agent.recipes.images.crops import BRIGHTNESS, CONTRAST, GREY, HUE, SATURATION, SIGMA, SIGMA_MOST

WIDE = 3  # sigmas, behind which nothing of a blur is seen


def cut(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    """Each crop [n, columns] of its image [n, 3, s, s] (0 to 1) as [n, 3, side, side] from -1 to 1."""
    with torch.autocast(images.device.type, enabled=False):  # what is seen depends on no device
        return _coloured(_boxes(images, crops, side), crops, side) * 2 - 1


def _boxes(images: torch.Tensor, crops: torch.Tensor, side: int) -> torch.Tensor:
    """By bilinear interpolation."""
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
    """`sigma` in pixels; where it is 0, nothing is."""
    radius = math.ceil(WIDE * SIGMA_MOST * images.shape[-1])
    wide = sigma.clamp(min=1e-3).unsqueeze(1).expand(-1, 2)
    blurred = kornia.filters.gaussian_blur2d(images, 2 * radius + 1, wide)
    return torch.where(_each(sigma) > 0, blurred, images)


def _each(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)
