"""Reference codecs and sums of squares in plain numpy. The fast code must return the same bits."""

import math

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.codecs import EXPONENT, HIGHEST_EXPONENT, LARGEST_HALF, LOWEST_EXPONENT, Floats
from peer_agent.protocol.codec_sizes import BLOCK, INT4_BLOCK
from peer_agent.protocol.recipe import Codec

# codec: (number of elements that share a scale, largest integer)
BLOCKS = {"int8": (BLOCK, 127), "int4": (INT4_BLOCK, 7)}


def encoded(codec: Codec, values: Floats) -> bytes:
    if codec == "fp32":
        return values.astype("<f4").tobytes()
    if codec == "fp16":
        exponent = _exponent(float(np.abs(values).max()))
        scaled = (values * np.float32(2.0**-exponent)).clip(-LARGEST_HALF, LARGEST_HALF)
        return EXPONENT.pack(exponent) + scaled.astype("<f2").tobytes()
    block, top = BLOCKS[codec]
    scales = _scales(values, block, top)
    levels = np.rint(values / np.repeat(scales, block)[: values.size]).astype(np.int8)
    return bytes(scales.astype("<f4").tobytes() + (_pairs(levels) if codec == "int4" else levels).tobytes())


def decoded(codec: Codec, data: bytes, length: int) -> Floats:
    with np.errstate(all="ignore"):
        if codec == "fp32":
            return np.frombuffer(data, "<f4").astype(np.float32)
        if codec == "fp16":
            (exponent,) = EXPONENT.unpack_from(data)
            is_written = LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT
            halves = np.frombuffer(data, "<f2", offset=EXPONENT.size).astype(np.float32)
            return halves * np.float32(2.0**exponent if is_written else math.nan)
        block, _ = BLOCKS[codec]
        scales = np.frombuffer(data, "<f4", count=-(-length // block)).astype(np.float32)
        levels = np.frombuffer(data, np.int8, offset=4 * scales.size)
        if codec == "int4":
            levels = np.concatenate([_signed(levels & 15), _signed(levels >> 4 & 15)])[:length]
        return levels.astype(np.float32) * np.repeat(scales, block)[:length]


def _pairs(levels: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack pairs of four-bit integers into bytes. If the number of integers is odd, prepend a zero."""
    even = np.append(levels, np.zeros(levels.size % 2, np.int8))
    low, high = (even & 15).astype(np.uint8).reshape(2, -1)
    return np.asarray(low + 16 * high, np.uint8)


def _signed(bits: NDArray[np.int8]) -> NDArray[np.int8]:
    return np.asarray(np.where(bits < 8, bits, bits - 16), np.int8)


def sum_of_squares(values: Floats) -> float:
    """Sum the squares pairwise: keep adding the first half to the last half until one number is left. If the count is
    odd, the middle number is carried over to the next pass.
    """
    with np.errstate(all="ignore"):
        squares = values.astype(np.float64) ** 2
        while squares.size > 1:
            half = squares.size // 2
            sums = squares[:half] + squares[squares.size - half :]
            squares = np.concatenate([sums, squares[half : squares.size - half]])
    return float(squares[0]) if squares.size else 0.0


def _exponent(peak: float) -> int:
    fraction, exponent = math.frexp(peak)
    return min(max(exponent + (fraction >= 1 - 2**-12) - 15, LOWEST_EXPONENT), HIGHEST_EXPONENT)


def _scales(values: Floats, block: int, top: int) -> Floats:
    peaks = np.maximum.reduceat(np.abs(values), np.arange(0, values.size, block))
    info = np.finfo(np.float32)
    largest = np.nextafter(info.max / np.float32(top), np.float32(0))
    return np.asarray((peaks / np.float32(top)).clip(info.smallest_normal, largest), np.float32)
