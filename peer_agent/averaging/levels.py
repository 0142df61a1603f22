"""Values as small integers: a scale for each block, which is its largest magnitude over the largest integer.

A row is a chunk; its last block may be shorter than the others.
"""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.scratch import SCRATCH

Floats = NDArray[np.float32]
Levels = NDArray[np.int8]

SMALLEST_SCALE = np.finfo(np.float32).smallest_normal  # nothing is divided by zero or by a subnormal number


def to_levels(rows: Floats, block: int, top: int) -> tuple[Floats, Levels]:
    """Scales [chunks, blocks] and integers [chunks, n] from -top to top; `rows`, [chunks, n] and contiguous, become
    what is decoded, but for the signs of zeros.

    The integers last until the next call. Raises ValueError where a value is not finite.
    """
    scales = _scales(rows, block, top)
    levels = SCRATCH.room("levels", np.int8, rows.size).reshape(rows.shape)
    for values, by in _blocks(rows, scales, block):
        np.divide(values, by, out=values)
    np.rint(rows, out=rows)  # within -top and top: no scale is rounded down by as much as half a level
    np.copyto(levels, rows, casting="unsafe")
    multiply(rows, scales, block)
    return scales, levels


def multiply(rows: Floats, scales: Floats, block: int) -> None:
    """Each block of [chunks, n] by its scale of [chunks, blocks], in place."""
    for values, by in _blocks(rows, scales, block):
        np.multiply(values, by, out=values)


def _blocks(rows: Floats, scales: Floats, block: int) -> Iterator[tuple[Floats, Floats]]:
    """Whole blocks, and then what is left of the last ones, beside their scales; views."""
    count, length = rows.shape
    whole = length // block
    if whole:
        yield rows[:, : whole * block].reshape(count, whole, block), scales[:, :whole, np.newaxis]
    if length % block:
        yield rows[:, whole * block :], scales[:, whole:]


def _scales(rows: Floats, block: int, top: int) -> Floats:
    magnitudes = SCRATCH.room("magnitudes", np.float32, rows.size).reshape(rows.shape)
    np.abs(rows, out=magnitudes)
    peaks: Floats = np.maximum.reduceat(magnitudes, np.arange(0, rows.shape[1], block), axis=1)
    if not math.isfinite(peaks.max()):
        raise ValueError("a value is not finite")
    scales: Floats = np.divide(peaks, np.float32(top), out=peaks)
    np.maximum(scales, SMALLEST_SCALE, out=scales)
    return np.minimum(scales, _largest_scale(top), out=scales)


@cache
def _largest_scale(top: int) -> np.float32:
    """One more decodes to infinity."""
    largest: np.float32 = np.nextafter(np.finfo(np.float32).max / np.float32(top), np.float32(0))
    return largest
