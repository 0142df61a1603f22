"""How a chunk of float32 values becomes bytes. Decoding is one multiplication (rule 13), everywhere the same.

    fp32   the values, little-endian
    fp16   int16 exponent e, then halves h: x = h * 2^e (rule 34)
    int8   a float32 scale per block of 1024, then the integers q: x = q * scale

Encoding what was decoded gives the same bytes again.
"""

import math
import struct
import sys
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from peer_agent.protocol.codec_sizes import BLOCK, encoded_size
from peer_agent.protocol.log.merkle import Leaf, leaf_of
from peer_agent.protocol.recipe import Codec

Floats = NDArray[np.float32]
# Whoever takes more at once does it in a thread, so that their event loop stays awake (rule 37).
INLINE_BYTES = 256 * 1024

EXPONENT = struct.Struct("<h")
HALF_EXPONENT = 15  # peaks are brought to [2^14, 2^15): below half's 65504, most of its range is for the small
LARGEST_HALF = np.float32(2**15 - 2**4)
LOWEST_EXPONENT = -126  # of a power of two that is a normal float32 number
HIGHEST_EXPONENT = 128 - HALF_EXPONENT  # of float32's largest value

LEVELS = np.float32(127)
SMALLEST_SCALE = np.finfo(np.float32).smallest_normal  # nothing is divided by zero or by a subnormal number
LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / LEVELS, np.float32(0))  # one more decodes to inf


def encode(codec: Codec, values: Floats) -> bytes:
    """The bytes of a chunk. Raises ValueError where a value is not finite."""
    match codec:
        case "fp32":
            _peak(values)
            return values.astype("<f4", copy=False).tobytes()
        case "fp16":
            return _encode_half(values)
        case "int8":
            return _encode_int8(values)
        case _:
            assert_never(codec)


def decode(codec: Codec, data: bytes | memoryview, length: int) -> Floats:
    """A new array of `length` values; any bytes decode, perhaps to values that are not finite.

    Raises ValueError where the bytes are not as many as `length` values take.
    """
    if len(data) != (expected := encoded_size(codec, length)):
        raise ValueError(f"{length} values take {expected} bytes in {codec}, not {len(data)}")
    with np.errstate(all="ignore"):
        match codec:
            case "fp32":
                return np.frombuffer(data, "<f4").astype(np.float32)
            case "fp16":
                return _decode_half(data)
            case "int8":
                return _decode_int8(data, length)
            case _:
                assert_never(codec)


def sum_squares(values: Floats) -> float:
    """The sum of squares in float64; inf or nan where a value is not finite.

    A halving tree of plain additions: leaves are hashed, so every machine must come to the same last bit.
    """
    with np.errstate(all="ignore"):
        squares = values.astype(np.float64)
        squares *= squares
        while squares.size > 1:
            half = squares.size // 2
            squares[:half] += squares[squares.size - half :]
            squares = squares[: squares.size - half]
    return float(squares[0]) if squares.size else 0.0


def decode_with_leaf(codec: Codec, data: bytes | memoryview, length: int) -> tuple[Floats, Leaf]:
    """The values of a chunk, and the leaf that commits to it. Raises ValueError as `decode` does."""
    values = decode(codec, data, length)
    return values, leaf_of(data, sum_squares(values))


def _peak(values: Floats) -> float:
    """The largest magnitude. Raises ValueError where a value is not finite."""
    with np.errstate(all="ignore"):
        low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("a value is not finite")
    return max(-low, high)


def _encode_half(values: Floats) -> bytes:
    exponent = _exponent(_peak(values))
    scaled = values * np.float32(2.0**-exponent)
    # Cuts only what would decode to 2^128, which is no float32 number.
    scaled.clip(-LARGEST_HALF, LARGEST_HALF, out=scaled)
    return EXPONENT.pack(exponent) + _to_half(scaled).astype("<f2", copy=False).tobytes()


def _exponent(peak: float) -> int:
    """The power of two that brings the peak to [2^14, 2^15), or as near as a normal float32 factor can."""
    fraction, exponent = math.frexp(peak)
    # Such a fraction rounds up to 1 in eleven bits: the peak that is decoded is the next power of two.
    rounds_up = fraction >= 1 - 2**-12
    return min(max(exponent + rounds_up - HALF_EXPONENT, LOWEST_EXPONENT), HIGHEST_EXPONENT)


def _decode_half(data: bytes | memoryview) -> Floats:
    (exponent,) = EXPONENT.unpack_from(data)
    return _from_half(np.frombuffer(data, "<f2", offset=EXPONENT.size).astype(np.float16)) * _factor(exponent)


def _factor(exponent: int) -> np.float32:
    """A power of two, or nan where no encoder writes such an exponent."""
    is_written = LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT
    return np.float32(2.0**exponent if is_written else np.nan)


def _to_half(values: Floats) -> NDArray[np.float16]:
    """numpy's cast, or torch's (20 to 600 times faster) in a process that has loaded it for its own work."""
    if not sys.modules.get("torch"):
        return values.astype(np.float16)
    import torch

    halves = np.empty(values.shape, np.float16)
    torch.from_numpy(halves).copy_(torch.from_numpy(values))
    return halves


def _from_half(halves: NDArray[np.float16]) -> Floats:
    if not sys.modules.get("torch"):
        return halves.astype(np.float32)
    import torch

    values = np.empty(halves.shape, np.float32)
    torch.from_numpy(values).copy_(torch.from_numpy(halves))
    return values


def _encode_int8(values: Floats) -> bytes:
    _peak(values)
    peaks: Floats = np.maximum.reduceat(np.abs(values), np.arange(0, values.size, BLOCK))
    scales: Floats = (peaks / LEVELS).clip(SMALLEST_SCALE, LARGEST_SCALE)
    levels = np.rint(np.divide(values, _spread(scales, values.size))).clip(-LEVELS, LEVELS)
    return scales.astype("<f4", copy=False).tobytes() + levels.astype(np.int8).tobytes()


def _decode_int8(data: bytes | memoryview, length: int) -> Floats:
    scales = np.frombuffer(data, "<f4", count=-(-length // BLOCK)).astype(np.float32)
    levels = np.frombuffer(data, np.int8, offset=4 * scales.size)
    return levels.astype(np.float32) * _spread(scales, length)


def _spread(scales: Floats, length: int) -> Floats:
    """Every element's scale."""
    return np.repeat(scales, BLOCK)[:length]
