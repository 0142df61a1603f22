"""Random image crops with altered colors, for learning without labels (arXiv 2006.09882, 2002.05709)."""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

Part = Annotated[float, Meta(gt=0, le=1)]
Chance = Annotated[float, Meta(ge=0, le=1)]

TRIES = 10  # boxes to try until one fits in the image; if none does, the crop is the whole image
NARROWEST = 3 / 4  # the smallest ratio of a box's width to its height, and of its height to its width
SIGMA_LEAST, SIGMA_MOST = 0.1 / 224, 2.0 / 224  # a blur's sigma range, relative to the crop's side; usual at 224 pixels
DRAWS = 2 * TRIES + 11  # random numbers used per crop


# A crop's columns. Lengths are fractions of the image's side. Brightness, contrast and saturation are factors: 1
# changes nothing. Hue is a rotation: 1 is a full turn. Sigma is the width of a blur, relative to the crop's side: 0
# means no blur.
LEFT, TOP, WIDTH, HEIGHT, MIRRORED, BRIGHTNESS, CONTRAST, SATURATION, HUE, GREY, SIGMA = range(11)
COLUMNS = 11
Crops = NDArray[np.float32]  # [..., COLUMNS]


class Looks(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The probability of each change to a crop, and the strength of color changes. The defaults are SwAV's."""

    flip: Chance = 0.5
    jitter: Chance = 0.8  # probability that brightness, contrast, saturation and hue change
    strength: Chance = 0.8  # the most that these change; hue changes by at most a quarter of it
    grey: Chance = 0.2
    blur: Chance = 0.5


def drawn_crops(chance: np.random.Generator, count: int, least: float, most: float, looks: Looks) -> Crops:
    """Draw random crops [count, columns], like torchvision's RandomResizedCrop.

    Color changes are always applied in the same order. `least` and `most` limit a crop's area, as a fraction of the
    image.
    """
    numbers = chance.random((count, DRAWS))
    crops = np.zeros((count, COLUMNS))
    width, height = _sizes(numbers[:, :TRIES], numbers[:, TRIES : 2 * TRIES], least, most)
    left, top, mirrored, jittered, *factors, grey, blurred, sigma = numbers[:, 2 * TRIES :].T
    crops[:, LEFT], crops[:, TOP] = left * (1 - width), top * (1 - height)
    crops[:, WIDTH], crops[:, HEIGHT] = width, height
    crops[:, MIRRORED] = mirrored < looks.flip
    around = np.where(jittered < looks.jitter, (2 * np.array(factors) - 1) * looks.strength, 0)
    crops[:, BRIGHTNESS:HUE] = 1 + around[:3].T
    crops[:, HUE] = around[3] / 4
    crops[:, GREY] = grey < looks.grey
    wide = SIGMA_LEAST + (SIGMA_MOST - SIGMA_LEAST) * sigma
    crops[:, SIGMA] = np.where(blurred < looks.blur, wide, 0)
    return crops.astype(np.float32)


def _sizes(
    areas: NDArray[np.float64], shapes: NDArray[np.float64], least: float, most: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, for each row, the width and height of the first box that fits in the image, or 1 and 1 if none does."""
    area, ratio = least + (most - least) * areas, NARROWEST ** (1 - 2 * shapes)
    width, height = np.sqrt(area * ratio), np.sqrt(area / ratio)
    fits = (width <= 1) & (height <= 1)
    rows, first = np.arange(len(areas)), fits.argmax(axis=1)
    is_any = fits.any(axis=1)
    return np.where(is_any, width[rows, first], 1), np.where(is_any, height[rows, first], 1)
