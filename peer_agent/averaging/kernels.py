"""Arithmetic over whole rows, beneath the codecs: half precision, small integers with scales, sums of squares."""

import math
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.memory import SCRATCH

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

# Half precision: the same bits as numpy's casts, in a fraction of their time. torch's casts are the fastest, and are
# taken in a process that has loaded it for its own work. Without it, numbers are rounded by integer and float32
# operations that numpy does many at a time, and read from a table of all 65,536 halves.

BLOCK = 32 * 1024  # elements at once: what is worked on stays in the processor's cache
EXPONENT = 0x7F800000  # the bits of a float32 number that say its power of two
SMALLEST_NORMAL = np.float32(2.0**-14)  # half: below it, all are multiples of 2^-24
TO_ITS_LAST_BIT = 13 << 23  # 2^13 x: that number's last bit is worth as much as the last of x as a half
BIAS = (127 - 15 + 1) << 10  # float32's exponent to half's, and the leading bit, which is no longer left out


def to_halves(values: Floats, halves: Bits) -> None:
    """Round to half precision, ties to even: bits into `halves`; `values` become the magnitudes that these stand for.

    Both [n], contiguous. Magnitudes above 65504 are not for this.
    """
    if _has_torch():
        _cast(values, halves.view(np.float16))
        _cast(halves.view(np.float16), values)
        return
    for start in range(0, values.size, BLOCK):
        _round(values[start : start + BLOCK], halves[start : start + BLOCK])


def from_halves(halves: Bits, values: Floats) -> None:
    """The float32 numbers that halves stand for, among them inf and nan. [n] each, `values` contiguous."""
    if _has_torch():
        aligned = SCRATCH.room("halves", np.uint16, values.size)
        np.copyto(aligned, halves)  # torch reads this machine's byte order alone, and from even addresses
        _cast(aligned.view(np.float16), values)
        return
    table = SCRATCH.once("halves", _all_halves)
    for start in range(0, values.size, BLOCK):
        # No index is out of bounds; with "raise", numpy would take the long way round.
        table.take(halves[start : start + BLOCK], out=values[start : start + BLOCK], mode="wrap")


def _has_torch() -> bool:
    return bool(sys.modules.get("torch"))


def _cast(source: NDArray[np.generic], target: NDArray[np.generic]) -> None:
    import torch

    torch.from_numpy(target).copy_(torch.from_numpy(source))


def _all_halves() -> Floats:
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _round(values: Floats, halves: Bits) -> None:
    """Add a power of two so large that what a half cannot hold falls off the end of the sum: the adder rounds.

    The sum's lowest bits then count the half's last places, its exponent is that of the half but for a constant.
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


# Sums of squares, to the same last bit on every machine: leaves are hashed.

Squares = NDArray[np.float64]
Level = tuple[Squares, Squares]


def sums_of_squares(rows: NDArray[np.float32]) -> list[float]:
    """The sum of each row of [chunks, n] in float64; inf or nan where a value is not finite.

    A halving tree of plain additions. Squares of float32 are exact in float64, so only the additions round.
    """
    count, length = rows.shape
    if not length:
        return [0.0] * count
    add = np.add  # looked up once and without a keyword: short rows are mostly calls
    squares, levels = SCRATCH.once(("squares", count, length), lambda: _tree(count, length))
    np.copyto(squares, rows)
    np.multiply(squares, squares, out=squares)
    for low, high in levels:
        add(low, high, low)
    sums: list[float] = squares[:, 0].tolist()
    return sums


def _tree(count: int, length: int) -> tuple[Squares, list[Level]]:
    """Room for the squares, and of each level what is added to what: the first half, and the last."""
    squares = SCRATCH.room("squares", np.float64, count * length).reshape(count, length)
    levels = []
    while length > 1:
        half = length // 2
        levels.append((squares[:, :half], squares[:, length - half : length]))
        length -= half
    return squares, levels


# Values as small integers: a scale for each block, which is its largest magnitude over the largest integer. A row is a
# chunk; its last block may be shorter than the others.

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
