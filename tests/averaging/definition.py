"""What codecs and sums of squares are, in the plainest numpy: what is fast has to come to the same bits."""

import math

import numpy as np

from peer_agent.averaging.codecs import EXPONENT, HIGHEST_EXPONENT, LARGEST_HALF, LOWEST_EXPONENT, Floats
from peer_agent.protocol.codec_sizes import BLOCK
from peer_agent.protocol.recipe import Codec

TOPS = {"int8": 127}


def encoded(codec: Codec, values: Floats) -> bytes:
    """Finite values, [n]."""
    if codec == "fp32":
        return values.astype("<f4").tobytes()
    if codec == "fp16":
        exponent = _exponent(float(np.abs(values).max()))
        scaled = (values * np.float32(2.0**-exponent)).clip(-LARGEST_HALF, LARGEST_HALF)
        return EXPONENT.pack(exponent) + scaled.astype("<f2").tobytes()
    scales = _scales(values, TOPS[codec])
    levels = np.rint(values / np.repeat(scales, BLOCK)[: values.size])
    return bytes(scales.astype("<f4").tobytes() + levels.astype(np.int8).tobytes())


def decoded(codec: Codec, data: bytes, length: int) -> Floats:
    """As many bytes as `length` values take."""
    with np.errstate(all="ignore"):
        if codec == "fp32":
            return np.frombuffer(data, "<f4").astype(np.float32)
        if codec == "fp16":
            (exponent,) = EXPONENT.unpack_from(data)
            is_written = LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT
            halves = np.frombuffer(data, "<f2", offset=EXPONENT.size).astype(np.float32)
            return halves * np.float32(2.0**exponent if is_written else math.nan)
        scales = np.frombuffer(data, "<f4", count=-(-length // BLOCK)).astype(np.float32)
        levels = np.frombuffer(data, np.int8, offset=4 * scales.size).astype(np.float32)
        return levels * np.repeat(scales, BLOCK)[:length]


def sum_of_squares(values: Floats) -> float:
    """The first half and the last are added until one number is left; the middle one of an odd number waits."""
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


def _scales(values: Floats, top: int) -> Floats:
    peaks = np.maximum.reduceat(np.abs(values), np.arange(0, values.size, BLOCK))
    info = np.finfo(np.float32)
    largest = np.nextafter(info.max / np.float32(top), np.float32(0))
    return np.asarray((peaks / np.float32(top)).clip(info.smallest_normal, largest), np.float32)
