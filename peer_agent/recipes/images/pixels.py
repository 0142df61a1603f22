"""Load shards of images, and convert images to model input."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from peer_agent.protocol.errors import Problem

Pixels = NDArray[np.uint8]  # [images, side, side, 3]


class Images(NamedTuple):
    """Images, and each image's class number."""

    pixels: Pixels
    labels: NDArray[np.uint16]


def load_shard(path: Path) -> Images:
    """Return the images in a shard's file. Raises Problem E111 if the file is malformed."""
    try:
        with safe_open(path, framework="numpy") as file:
            images = Images(file.get_tensor("pixels"), file.get_tensor("labels"))
    except SafetensorError as error:
        raise Problem.of("E111", name=path.name, url=path.parent) from error
    if not _is_sound(images):
        raise Problem.of("E111", name=path.name, url=path.parent)
    return images


def size_of(shard: Images) -> int:
    return len(shard.labels)


def _is_sound(images: Images) -> bool:
    pixels, labels = images
    if pixels.dtype != np.uint8 or labels.dtype != np.uint16 or (pixels.ndim, labels.ndim) != (4, 1):
        return False
    return len(pixels) == len(labels) and pixels.shape[1] == pixels.shape[2]


def shards_of(folder: Path) -> Iterator[Images]:
    for path in sorted(folder.glob("*.safetensors")):
        yield load_shard(path)


def as_floats(pixels: Pixels) -> NDArray[np.float32]:
    """Return images as model input: [images, 3, side, side], with values from -1 to 1."""
    return (pixels.astype(np.float32).transpose(0, 3, 1, 2) / np.float32(127.5) - np.float32(1)).copy()


def moved(image: Pixels, chance: np.random.Generator, *, by: int, may_flip: bool) -> Pixels:
    """Shift an image [side, side, 3] by up to `by` pixels, repeating its edge. With `may_flip`, mirror it half the
    time.
    """
    down, right = (int(chance.random() * (2 * by + 1)) for _ in range(2))
    is_flipped = may_flip and chance.random() < 0.5
    side = len(image)
    padded = np.pad(image, ((by, by), (by, by), (0, 0)), mode="edge") if by else image
    cut = padded[down : down + side, right : right + side]
    return cut[:, ::-1] if is_flipped else cut
