"""Images as a model receives them, augmented by shared random numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import RunId
from peer_agent.recipes.images.pixels import as_floats, load_shard, moved
from peer_agent.recipes.training import Place, chance_of

HERE = Place(RunId("ab" * 16), 0, 0)
IMAGE = np.arange(6 * 6 * 3, dtype=np.uint8).reshape(6, 6, 3)


def test_floats_are_from_minus_one_to_one() -> None:
    floats = as_floats(np.array([[[[0, 255, 51]]]], np.uint8))
    np.testing.assert_allclose(floats[0, :, 0, 0], [-1, 1, -0.6], atol=1e-6)
    assert floats.dtype == np.float32


def test_image_is_moved_each_way_and_mirrored_half_the_time() -> None:
    drawn = [moved(IMAGE, chance_of(HERE, n), by=1, may_flip=True) for n in range(200)]
    padded = np.pad(IMAGE, ((1, 1), (1, 1), (0, 0)), mode="edge")
    possible = [padded[d : d + 6, r : r + 6] for d in range(3) for r in range(3)]
    kinds = {image.tobytes() for cut in possible for image in (cut, cut[:, ::-1])}
    assert {image.tobytes() for image in drawn} == kinds
    mirrored = sum(any(np.array_equal(image, cut[:, ::-1]) for cut in possible) for image in drawn)
    assert 70 < mirrored < 130
    assert np.array_equal(moved(IMAGE, chance_of(HERE, 1), by=0, may_flip=False), IMAGE)


def test_chance_is_of_the_place_and_the_sample() -> None:
    draws = {
        chance_of(place, sample).random()
        for place in (HERE, Place(HERE.run, 1, 0), Place(HERE.run, 0, 1), Place(RunId("cd" * 16), 0, 0))
        for sample in (0, 1)
    }
    assert len(draws) == 8
    assert chance_of(HERE, 0).random() == chance_of(HERE, 0).random()


@pytest.mark.parametrize(
    "tensors",
    [
        {"pixels": np.zeros((2, 4, 4, 3), np.float32), "labels": np.zeros(2, np.uint16)},
        {"pixels": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2, np.int64)},
        {"pixels": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(3, np.uint16)},
        {"pixels": np.zeros((2, 4, 5, 3), np.uint8), "labels": np.zeros(2, np.uint16)},
        {"pixels": np.zeros((2, 16), np.uint8), "labels": np.zeros(2, np.uint16)},
        {"tokens": np.zeros(2, np.uint16)},
    ],
)
def test_what_is_no_shard_of_images_is_refused(tmp_path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    save_file(tensors, tmp_path / "shard.safetensors")
    with pytest.raises(Problem, match="E111"):
        load_shard(tmp_path / "shard.safetensors")
