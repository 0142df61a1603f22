"""Bytes of an image become pixels; whatever is wrong with them, this says so and costs no more than a large image."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from peer_agent.recipes.images.pixels import Pixels

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "PPM", "TIFF")
MOST_PIXELS = 64 * 1024 * 1024  # of an image that is read


def pixels_of(content: bytes, side: int) -> Pixels | None:
    """A square of red, green and blue [side, side, 3]: the shorter side, the middle of the longer. None: no image."""
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            warnings.simplefilter("ignore")  # of odd metadata; the size is looked at here
            if image.width * image.height > MOST_PIXELS:
                return None
            image.load()
            upright = _on_white(ImageOps.exif_transpose(image))
            return np.asarray(ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC), dtype=np.uint8)
    except Exception:  # noqa: BLE001 - decoders of strangers' bytes raise whatever they like; the file is counted
        return None


def _on_white(image: Image.Image) -> Image.Image:
    """Without what shines through."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
