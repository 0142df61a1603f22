"""Crops and colour changes, compared with those made by Pillow and scipy."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from scipy import ndimage

from peer_agent.protocol.identifiers import RunId
from peer_agent.recipes.image_ssl.training import cut
from peer_agent.recipes.images.crops import (
    BRIGHTNESS,
    CONTRAST,
    GREY,
    HEIGHT,
    HUE,
    MIRRORED,
    SATURATION,
    SIGMA,
    SIGMA_MOST,
    WIDTH,
    Crops,
    Looks,
    drawn_crops,
)
from peer_agent.recipes.training import Place, chance_of

HERE = Place(RunId("ab" * 16), 0, 0)
SIDE = 48
PLAIN = (0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)
As = tuple[float, ...]


def picture() -> NDArray[np.uint8]:
    """Return an image with soft colours, of shape [SIDE, SIDE, 3]."""
    noise = np.random.Generator(np.random.Philox(2)).uniform(0, 255, (SIDE, SIDE, 3))
    soft = ndimage.gaussian_filter(noise, (3, 3, 0))
    stretched = (soft - soft.min()) / (soft.max() - soft.min()) * 200 + 20
    pixels: NDArray[np.uint8] = stretched.astype(np.uint8)
    return pixels


def changed(column: int, value: float, of: As = PLAIN) -> As:
    return (*of[:column], value, *of[column + 1 :])


def made(*crops: As, side: int = SIDE) -> NDArray[np.float32]:
    """Cut crops. Return an array [crops, side, side, 3] with values from 0 to 255."""
    image = torch.from_numpy(picture()).permute(2, 0, 1).float().div(255)
    found = cut(image.repeat(len(crops), 1, 1, 1), torch.tensor(crops, dtype=torch.float32), side)
    return ((found + 1) * 127.5).permute(0, 2, 3, 1).numpy()


def drawn(count: int = 400, least: float = 0.05, most: float = 1.0, looks: Looks | None = None) -> Crops:
    return np.concatenate([drawn_crops(chance_of(HERE, n), 2, least, most, looks or Looks()) for n in range(count)])


def test_a_whole_image_is_left_as_it_is() -> None:
    np.testing.assert_allclose(made(PLAIN)[0], picture(), atol=1e-3)
    np.testing.assert_allclose(made(changed(MIRRORED, 1))[0], picture()[:, ::-1], atol=1e-3)


def test_a_box_is_what_pillow_cuts_out() -> None:
    crop = (12 / SIDE, 6 / SIDE, 24 / SIDE, 18 / SIDE, *PLAIN[MIRRORED:])
    box = Image.fromarray(picture()).crop((12, 6, 36, 24)).resize((24, 24), Image.Resampling.BILINEAR)
    same_size = made(crop, side=24)[0]
    np.testing.assert_allclose(same_size, np.array(box), atol=2.5)
    mirrored = made(changed(MIRRORED, 1, crop), side=24)[0]
    np.testing.assert_allclose(mirrored, same_size[:, ::-1], atol=1e-3)


@pytest.mark.parametrize("factor", [0.3, 1.6])
@pytest.mark.parametrize(
    ("column", "enhance"),
    [
        (BRIGHTNESS, ImageEnhance.Brightness),
        (CONTRAST, ImageEnhance.Contrast),
        (SATURATION, ImageEnhance.Color),
    ],
)
def test_colours_are_changed_as_pillow_does(
    column: int, enhance: type[ImageEnhance.Brightness | ImageEnhance.Contrast | ImageEnhance.Color], factor: float
) -> None:
    expected = np.array(enhance(Image.fromarray(picture())).enhance(factor))
    np.testing.assert_allclose(made(changed(column, factor))[0], expected, atol=2.5)


def test_hue_turns_and_grey_has_none() -> None:
    turned = made(changed(HUE, 1 / 3))[0]
    np.testing.assert_allclose(turned, picture()[:, :, [2, 0, 1]], atol=1e-2)
    grey = made(changed(GREY, 1))[0]
    np.testing.assert_allclose(grey[..., 0], np.array(Image.fromarray(picture()).convert("L")), atol=1)
    assert np.array_equal(grey[..., 0], grey[..., 1])
    assert np.array_equal(grey[..., 0], grey[..., 2])


def test_blur_is_a_gaussians() -> None:
    blurred = made(changed(SIGMA, SIGMA_MOST), side=224)[0]
    sharp = made(PLAIN, side=224)[0]
    expected = ndimage.gaussian_filter(sharp, (2, 2, 0), mode="mirror", truncate=3)
    np.testing.assert_allclose(blurred, expected, atol=0.2)
    assert np.abs(blurred - sharp).max() > 0.5


def test_boxes_lie_within_the_image_and_have_the_area_asked_for() -> None:
    crops = drawn(least=0.14, most=0.4)
    left, top, width, height = crops[:, :MIRRORED].T
    assert min(left.min(), top.min()) >= 0
    assert max((left + width).max(), (top + height).max()) <= 1 + 1e-6
    area, shape = width * height, width / height
    assert 0.14 - 1e-6 <= area.min() < 0.15
    assert 0.39 < area.max() <= 0.4 + 1e-6
    assert area.mean() == pytest.approx(0.27, abs=0.01)
    assert (shape.min(), shape.max()) == (pytest.approx(3 / 4, rel=0.02), pytest.approx(4 / 3, rel=0.02))
    assert np.log(shape).mean() == pytest.approx(0, abs=0.02)
    assert left.mean() == pytest.approx((1 - width.mean()) / 2, abs=0.02)


def test_what_fits_nowhere_is_the_whole_image() -> None:
    crops = drawn(least=1.0, most=1.0)
    is_whole = (crops[:, WIDTH] == 1) & (crops[:, HEIGHT] == 1)
    assert is_whole.all()


def test_chances_are_those_of_the_recipe() -> None:
    crops = drawn(looks=Looks(flip=0.2, jitter=0.6, strength=0.4, grey=0.1, blur=0.7))
    jittered = crops[:, BRIGHTNESS] != 1
    assert crops[:, MIRRORED].mean() == pytest.approx(0.2, abs=0.05)
    assert jittered.mean() == pytest.approx(0.6, abs=0.05)
    assert crops[:, GREY].mean() == pytest.approx(0.1, abs=0.04)
    assert (crops[:, SIGMA] > 0).mean() == pytest.approx(0.7, abs=0.05)
    assert crops[:, SIGMA].max() == pytest.approx(SIGMA_MOST, rel=0.02)
    for column in (BRIGHTNESS, CONTRAST, SATURATION):
        assert crops[jittered, column].min() == pytest.approx(0.6, abs=0.02)
        assert crops[jittered, column].max() == pytest.approx(1.4, abs=0.02)
    assert np.abs(crops[:, HUE]).max() == pytest.approx(0.1, abs=0.005)
    four = crops[jittered][:, [BRIGHTNESS, CONTRAST, SATURATION, HUE]]
    assert np.abs(np.corrcoef(four.T) - np.eye(4)).max() < 0.2, "each for itself"
    none = drawn(looks=Looks(flip=0, jitter=0, grey=0, blur=0))
    assert np.array_equal(none[:, MIRRORED:], np.tile(PLAIN[MIRRORED:], (len(none), 1)))


def test_blur_never_reaches_beyond_its_kernel() -> None:
    for side in (8, 33, 512):
        assert np.isfinite(made(changed(SIGMA, SIGMA_MOST), side=side)).all()
        assert math.ceil(3 * SIGMA_MOST * side) < side
