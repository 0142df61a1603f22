"""Codecs that convert chunks of float32 values to bytes and back. Re-encoding a decoded chunk gives the same bytes.
Every machine decodes to the same bits, because decoding is a single multiplication (rule 13).

    fp32   the values, little-endian
    fp16   int16 exponent e, then halves h: x = h * 2^e (rule 34)
    int8   a float32 scale per block of 1024, then the integers q: x = q * scale
    int4   a float32 scale per block of 128, then ceil(n/2) bytes in two's complement: x = q * scale.
           Byte i has q of value i in its low four bits, and q of value i + ceil(n/2) in its high four bits
"""

import math
import struct
from collections.abc import Sequence
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.kernels import from_halves, multiply, sums_of_squares, to_halves, to_levels
from peer_agent.averaging.memory import SCRATCH
from peer_agent.protocol.codec_sizes import BLOCK, INT4_BLOCK, encoded_size
from peer_agent.protocol.log.merkle import Leaf, leaf_of
from peer_agent.protocol.recipe import Codec

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Encoded = tuple[memoryview, Leaf]
# Callers process larger payloads in a thread, so that their event loop stays responsive (rule 37).
INLINE_BYTES = 256 * 1024

EXPONENT = struct.Struct("<h")
# Peaks are scaled to [2^14, 2^15), below the largest half (65504), so that most of the range serves small values.
HALF_EXPONENT = 15
LARGEST_HALF = np.float32(2**15 - 2**4)
LOWEST_EXPONENT = -126  # exponent of the smallest power of two that is a normal float32 number
HIGHEST_EXPONENT = 128 - HALF_EXPONENT  # exponent for float32's largest value

INT8_TOP, INT4_TOP = 127, 7


def encode(codec: Codec, values: Floats) -> bytes:
    """Encode one chunk, [n]. Raises ValueError if any value is not finite."""
    payload = np.empty((1, encoded_size(codec, values.size)), np.uint8)
    encode_rows(codec, values.reshape(1, -1).copy(), payload)
    return bytes(memoryview(payload[0]))


def encode_rows(codec: Codec, rows: Floats, payloads: Bytes) -> None:
    """Encode contiguous `rows` [chunks, n] into `payloads` [chunks, bytes].

    Overwrites `rows` with the decoded values, which may lose their signs if the codec is fp16. Raises ValueError if any
    value is not finite.
    """
    with np.errstate(all="ignore"):
        match codec:
            case "fp32":
                _peaks(rows)
                payloads.view("<f4")[:] = rows
            case "fp16":
                _encode_halves(rows, payloads)
            case "int8":
                _encode_int8(rows, payloads)
            case "int4":
                _encode_int4(rows, payloads)
            case _:
                assert_never(codec)


def encode_with_leaves(codec: Codec, rows: Floats, payloads: Bytes) -> list[Encoded]:
    """Encode like `encode_rows`. Return a view of each chunk's payload, along with its leaf."""
    encode_rows(codec, rows, payloads)
    views = [memoryview(payload) for payload in payloads]
    return [(view, leaf_of(view, total)) for view, total in zip(views, sums_of_squares(rows), strict=True)]


def decode(codec: Codec, data: bytes | memoryview, length: int) -> Floats:
    """Decode into a new array, which may contain inf and nan. Raises ValueError if the number of bytes is wrong."""
    values = np.empty(length, np.float32)
    decode_into(codec, data, values)
    return values


def decode_into(codec: Codec, data: bytes | memoryview, values: Floats) -> None:
    """Decode into the contiguous array `values` [n]. Raises ValueError if the number of bytes is wrong."""
    with np.errstate(all="ignore"):
        _decode(codec, data, values)


def sum_squares(values: Floats) -> float:
    """Return the sum of squares of `values` [n] in float64. The result is inf or nan if any value is not finite."""
    with np.errstate(all="ignore"):
        return sums_of_squares(values.reshape(1, -1))[0]


def decode_with_leaf(codec: Codec, data: bytes | memoryview, values: Floats) -> Leaf:
    """Decode into the contiguous array `values` [n] and return the chunk's leaf.

    Raises ValueError if the number of bytes is wrong.
    """
    with np.errstate(all="ignore"):
        _decode(codec, data, values)
        return leaf_of(data, sums_of_squares(values.reshape(1, -1))[0])


def _decode(codec: Codec, data: bytes | memoryview, values: Floats) -> None:
    if len(data) != (expected := encoded_size(codec, values.size)):
        raise ValueError(f"{values.size} values take {expected} bytes in {codec}, not {len(data)}")
    match codec:
        case "fp32":
            np.copyto(values, np.frombuffer(data, "<f4"))
        case "fp16":
            _decode_halves(data, values)
        case "int8":
            _decode_int8(data, values)
        case "int4":
            _decode_int4(data, values)
        case _:
            assert_never(codec)


def _peaks(rows: Floats) -> Sequence[float]:
    """Return the largest magnitude of each row. Raises ValueError if any value is not finite."""
    low, high = rows.min(axis=1, initial=0).tolist(), rows.max(axis=1, initial=0).tolist()
    if not all(map(math.isfinite, low + high)):
        raise ValueError("a value is not finite")
    return [max(-a, b) for a, b in zip(low, high, strict=True)]


def _encode_halves(rows: Floats, payloads: Bytes) -> None:
    exponents = [_exponent(peak) for peak in _peaks(rows)]
    _scale(rows, [2.0**-exponent for exponent in exponents])
    if HIGHEST_EXPONENT in exponents:
        # A larger half would decode to 2^128, which float32 cannot represent.
        rows.clip(-LARGEST_HALF, LARGEST_HALF, out=rows)
    halves = SCRATCH.room("halves", np.uint16, rows.size)
    to_halves(rows.reshape(-1), halves)
    payloads[:, EXPONENT.size :].view("<u2")[:] = halves.reshape(rows.shape)
    payloads[:, : EXPONENT.size].view("<i2")[:, 0] = exponents
    _scale(rows, [2.0**exponent for exponent in exponents])


def _scale(rows: Floats, factors: Sequence[float]) -> None:
    np.multiply(rows, np.array(factors, np.float32).reshape(-1, 1), out=rows)


def _exponent(peak: float) -> int:
    """Return the exponent that scales `peak` into [2^14, 2^15), clamped so that the factor is a normal float32."""
    fraction, exponent = math.frexp(peak)
    # A fraction this large rounds up to 1 in eleven bits, so the peak decodes to the next power of two.
    rounds_up = fraction >= 1 - 2**-12
    return min(max(exponent + rounds_up - HALF_EXPONENT, LOWEST_EXPONENT), HIGHEST_EXPONENT)


def _decode_halves(data: bytes | memoryview, values: Floats) -> None:
    (exponent,) = EXPONENT.unpack_from(data)
    from_halves(np.frombuffer(data, "<u2", offset=EXPONENT.size), values)
    np.multiply(values, _factor(exponent), out=values)


def _factor(exponent: int) -> np.float32:
    is_written = LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT
    return np.float32(2.0**exponent if is_written else np.nan)


def _encode_int8(rows: Floats, payloads: Bytes) -> None:
    scales, levels = to_levels(rows, BLOCK, INT8_TOP)
    payloads[:, : 4 * scales.shape[1]].view("<f4")[:] = scales
    payloads[:, 4 * scales.shape[1] :].view(np.int8)[:] = levels


def _decode_int8(data: bytes | memoryview, values: Floats) -> None:
    scales = np.frombuffer(data, "<f4", count=-(-values.size // BLOCK))
    np.copyto(values, np.frombuffer(data, np.int8, offset=4 * scales.size))
    multiply(values.reshape(1, -1), scales.reshape(1, -1), BLOCK)


def _encode_int4(rows: Floats, payloads: Bytes) -> None:
    scales, levels = to_levels(rows, INT4_BLOCK, INT4_TOP)
    payloads[:, : 4 * scales.shape[1]].view("<f4")[:] = scales
    pairs, half = payloads[:, 4 * scales.shape[1] :].view(np.int8), -(-rows.shape[1] // 2)
    np.bitwise_and(levels[:, :half], 15, out=pairs)
    high = pairs[:, : rows.shape[1] - half]
    np.left_shift(levels[:, half:], 4, out=levels[:, half:])
    np.bitwise_or(high, levels[:, half:], out=high)


def _decode_int4(data: bytes | memoryview, values: Floats) -> None:
    scales = np.frombuffer(data, "<f4", count=-(-values.size // INT4_BLOCK))
    pairs, half = np.frombuffer(data, np.int8, offset=4 * scales.size), -(-values.size // 2)
    high = pairs[: values.size - half]
    np.right_shift(high, 4, out=values[half:], dtype=np.int8)
    np.right_shift(np.left_shift(pairs, 4), 4, out=values[:half], dtype=np.int8)
    multiply(values.reshape(1, -1), scales.reshape(1, -1), INT4_BLOCK)
