"""Handwritten digits as somebody would upload them: a tar of folders, one for each digit (LICENCE.md)."""

import gzip
import io
import tarfile
from pathlib import Path

from PIL import Image

LICENCE = "CC BY 4.0"
DATA = Path(__file__).with_name("digits.csv.gz")
SIDE, BRIGHTEST = 8, 16


def digits_tar() -> bytes:
    """1,797 images of 8 by 8 pixels: the same bytes each time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number, line in enumerate(gzip.decompress(DATA.read_bytes()).decode().splitlines()):
            *pixels, digit = (int(float(value)) for value in line.split(","))
            content = _png(pixels)
            entry = tarfile.TarInfo(f"digits/{digit}/{number:04}.png")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _png(pixels: list[int]) -> bytes:
    image = Image.frombytes("L", (SIDE, SIDE), bytes(value * 255 // BRIGHTEST for value in pixels))
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
