"""Integers and their scales: whole blocks, short ones, and numbers at both ends of what float32 holds."""

import math

import numpy as np
import pytest

from peer_agent.averaging.levels import SMALLEST_SCALE, multiply, to_levels

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize("top", [7, 127])
def test_a_blocks_largest_magnitude_is_the_largest_integer(top: int) -> None:
    rows = np.array([[1, -2, 4, 0.5, -8], [0, 0, 3, 0, 0]], np.float32)
    scales, levels = to_levels(rows, 2, top)
    assert np.array_equal(np.abs(levels).max(axis=1), [top, top])
    assert np.array_equal(levels[:, 4], [-top, 0])
    assert scales[0].tolist() == [np.float32(peak) / np.float32(top) for peak in (2, 4, 8)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
def test_rows_become_what_is_decoded(length: int) -> None:
    rows = np.random.default_rng(length).standard_normal((3, length)).astype(np.float32)
    before = rows.copy()
    scales, levels = to_levels(rows, 4, 127)
    decoded = levels.astype(np.float32)
    multiply(decoded, scales, 4)
    assert np.array_equal(rows, decoded)
    assert np.abs(rows - before).max() <= scales.max() / 2 * 1.001


@pytest.mark.parametrize("top", [7, 127])
@pytest.mark.parametrize("peak", [LARGEST, SMALLEST_SCALE, np.finfo(np.float32).smallest_subnormal, 0])
def test_the_ends_of_float32_stay_finite_and_in_bounds(top: int, peak: float) -> None:
    rows = np.array([[peak, -peak, peak / 2]], np.float32)
    scales, levels = to_levels(rows, 4, top)
    assert np.isfinite(rows).all()
    assert np.abs(levels.astype(int)).max() <= top
    assert scales.min() >= SMALLEST_SCALE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4])
def test_what_is_not_finite_is_no_level(bad: float, place: int) -> None:
    rows = np.ones((1, 5), np.float32)
    rows[0, place] = bad
    with pytest.raises(ValueError, match="not finite"):
        to_levels(rows, 4, 127)
