"""Array arithmetic for the codecs: half precision, small integers with scales, sums of squares."""

import math
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.memory import SCRATCH

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

# Conversion to and from half precision, giving the same bits as numpy's casts in a fraction of the time. torch's casts
# are the fastest, and are used if the process has already loaded torch. Otherwise, vectorized integer and float32
# operations round the numbers, and a table of all 65,536 halves decodes them.

BLOCK = 32 * 1024  # elements processed together, so that they fit in the processor's cache
EXPONENT = 0x7F800000  # the exponent bits of a float32 number
SMALLEST_NORMAL = np.float32(2.0**-14)  # the smallest normal half; smaller ones are multiples of 2^-24
# Adding 13 to x's exponent gives 2^13 x, whose last bit has the same value as the last bit of x as a half.
TO_ITS_LAST_BIT = 13 << 23
# The difference between the exponent biases of float32 and half, plus the leading bit, which becomes explicit.
BIAS = (127 - 15 + 1) << 10


def to_halves(values: Floats, halves: Bits) -> None:
    """Round to half precision, ties to even. Write the bits to `halves` and the rounded values to `values`.

    The rounded values may lose their signs. Both arrays are [n] and contiguous. Magnitudes must not exceed 65504.
    """
    if _has_torch():
        _cast(values, halves.view(np.float16))
        _cast(halves.view(np.float16), values)
        return
    for start in range(0, values.size, BLOCK):
        _round(values[start : start + BLOCK], halves[start : start + BLOCK])


def from_halves(halves: Bits, values: Floats) -> None:
    """Decode `halves` [n], which may include inf and nan, into the contiguous array `values` [n]."""
    if _has_torch():
        aligned = SCRATCH.room("halves", np.uint16, values.size)
        np.copyto(aligned, halves)  # torch reads only native byte order and even addresses
        _cast(aligned.view(np.float16), values)
        return
    table = SCRATCH.once("halves", _all_halves)
    for start in range(0, values.size, BLOCK):
        # No index is out of bounds; mode "raise" would make numpy buffer the output.
        table.take(halves[start : start + BLOCK], out=values[start : start + BLOCK], mode="wrap")


def _has_torch() -> bool:
    return bool(sys.modules.get("torch"))


def _cast(source: NDArray[np.generic], target: NDArray[np.generic]) -> None:
    import torch

    torch.from_numpy(target).copy_(torch.from_numpy(source))


def _all_halves() -> Floats:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _round(values: Floats, halves: Bits) -> None:
    """Round to half precision by adding a power of two.

    The power is large enough to shift out the bits that a half cannot store. The sum's lowest bits are then those of
    the half, and the two exponents differ by a constant.
    """
    bits = values.view(np.uint32)
    smallest = SCRATCH.once("smallest", lambda: np.full(BLOCK, SMALLEST_NORMAL).view(np.uint32))
    signs, large, sums = (SCRATCH.room(name, np.uint32, values.size) for name in ("signs", "large", "sums"))
    np.right_shift(bits, 16, out=signs)
    np.bitwise_and(signs, 0x8000, out=signs)
    np.bitwise_and(bits, 0x7FFFFFFF, out=bits)
    np.bitwise_and(bits, EXPONENT, out=large)
    np.maximum(large, smallest[: values.size], out=large)
    np.add(large, TO_ITS_LAST_BIT, out=large)
    np.add(values, large.view(np.float32), out=sums.view(np.float32))
    np.subtract(sums.view(np.float32), large.view(np.float32), out=values)
    np.right_shift(sums, 13, out=large)
    np.add(sums, large, out=sums)
    np.add(sums, signs, out=sums)
    np.copyto(halves, sums, casting="unsafe")
    np.subtract(halves, (BIAS + TO_ITS_LAST_BIT // 2**13) % 2**16, out=halves)


# Sums of squares must have the same bits on every machine, because each leaf contains one and leaves are hashed.

Squares = NDArray[np.float64]
Level = tuple[Squares, Squares]


def sums_of_squares(rows: NDArray[np.float32]) -> list[float]:
    """Return the float64 sum of squares of each row of `rows` [chunks, n].

    A row with non-finite values gives inf or nan. Pairs are added in a fixed tree. Squares of float32 values are exact
    in float64, so only the additions round.
    """
    count, length = rows.shape
    if not length:
        return [0.0] * count
    add = np.add  # a local variable, because with short rows the calls dominate the cost
    squares, levels = SCRATCH.once(("squares", count, length), lambda: _tree(count, length))
    np.copyto(squares, rows)
    np.multiply(squares, squares, out=squares)
    for low, high in levels:
        add(low, high, low)
    sums: list[float] = squares[:, 0].tolist()
    return sums


def _tree(count: int, length: int) -> tuple[Squares, list[Level]]:
    """Return an array for the squares and, for each tree level, views of the two halves to add."""
    squares = SCRATCH.room("squares", np.float64, count * length).reshape(count, length)
    levels = []
    while length > 1:
        half = length // 2
        levels.append((squares[:, :half], squares[:, length - half : length]))
        length -= half
    return squares, levels


# Conversion of values to small integers. A row is a chunk, divided into blocks; the last block may be shorter. Each
# block has a scale: its largest magnitude divided by the largest integer.

Levels = NDArray[np.int8]

SMALLEST_SCALE = np.finfo(np.float32).smallest_normal  # avoids division by zero or by a subnormal number


def to_levels(rows: Floats, block: int, top: int) -> tuple[Floats, Levels]:
    """Return scales [chunks, blocks] and integers [chunks, n] from -top to top. Raises ValueError if any value is not
    finite. Overwrites `rows` with the decoded values. The integers are valid until the next call in this thread.
    """
    scales = _scales(rows, block, top)
    levels = SCRATCH.room("levels", np.int8, rows.size).reshape(rows.shape)
    for values, by in _blocks(rows, scales, block):
        np.divide(values, by, out=values)
    # The results stay within -top and top, because rounding reduces a scale by much less than half a level.
    np.rint(rows, out=rows)
    np.copyto(levels, rows, casting="unsafe")
    multiply(rows, scales, block)
    return scales, levels


def multiply(rows: Floats, scales: Floats, block: int) -> None:
    """Multiply each block of `rows` [chunks, n] by its scale from `scales` [chunks, blocks], in place."""
    for values, by in _blocks(rows, scales, block):
        np.multiply(values, by, out=values)


def _blocks(rows: Floats, scales: Floats, block: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield views of the full blocks with their scales, then views of the shorter last blocks with theirs."""
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
    """Return the largest scale for which top * scale is finite."""
    largest: np.float32 = np.nextafter(np.finfo(np.float32).max / np.float32(top), np.float32(0))
    return largest
