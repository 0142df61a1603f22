"""Images of every kind become squares; what is none becomes nothing."""

import io

import numpy as np
import pytest
from PIL import Image

from peer_agent.publishing.images import decoding
from peer_agent.publishing.images.decoding import pixels_of
from tests.publishing.images.tars import png


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_usual_kinds_are_read(kind: str) -> None:
    pixels = pixels_of(png((200, 30, 30), kind=kind), 4)
    assert pixels is not None
    assert pixels.shape == (4, 4, 3)
    assert np.abs(pixels.astype(int) - (200, 30, 30)).max() < 10


def test_the_middle_of_the_longer_side_is_taken() -> None:
    image = Image.new("RGB", (30, 10), "black")
    image.paste("white", (10, 0, 20, 10))
    pixels = pixels_of(encoded(image), 10)
    assert pixels is not None
    assert pixels.min() == 255


def test_what_shines_through_is_white_and_grey_has_three_colours() -> None:
    clear = pixels_of(encoded(Image.new("RGBA", (5, 5), (10, 20, 30, 0))), 5)
    grey = pixels_of(encoded(Image.new("L", (5, 5), 77)), 5)
    assert clear is not None
    assert clear.min() == 255
    assert grey is not None
    assert set(grey.flat) == {77}


def test_a_photograph_stands_upright() -> None:
    image, exif = Image.new("RGB", (4, 4), "black"), Image.Exif()
    image.paste("white", (0, 0, 4, 2))  # the upper half
    exif[0x0112] = 3  # turned by 180 degrees
    content = io.BytesIO()
    image.save(content, "PNG", exif=exif)
    pixels = pixels_of(content.getvalue(), 4)
    assert pixels is not None
    assert pixels[0].max() == 0
    assert pixels[3].min() == 255


@pytest.mark.parametrize("content", [b"", b"no image", png()[:50], b"%!PS-Adobe-3.0 EPSF-3.0"], ids=str)
def test_what_is_no_image_is_nothing(content: bytes) -> None:
    assert pixels_of(content, 8) is None


def test_a_huge_image_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_PIXELS", 99)
    assert pixels_of(png(size=(10, 10)), 8) is None
    monkeypatch.setattr(decoding, "MOST_PIXELS", 100)
    assert pixels_of(png(size=(10, 10)), 8) is not None


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
