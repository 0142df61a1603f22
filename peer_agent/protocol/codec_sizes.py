"""Encoded sizes of a chunk in bytes, by codec. A receiver checks a frame's length against this before decoding."""

from typing import assert_never

from peer_agent.protocol.recipe import Codec

BLOCK = 1024  # int8 elements that share one four-byte scale; a divisor of grid.ALIGNMENT
# int4 elements that share one scale. Blocks of 1024 would save 5 % of the bytes, but the error would grow 1.2-fold on
# Gaussian values and 1.8-fold on heavy-tailed ones (Student's t with 3 degrees of freedom).
INT4_BLOCK = 128
EXPONENT_BYTES = 2  # bytes in the shared exponent that precedes the fp16 values


# The largest encoding error, as a fraction of a chunk's norm. Each value is off by at most half a step. The largest
# value of a block is 127 steps (int8) or 7 steps (int4).
ERROR: dict[Codec, float] = {
    "fp32": 0.0,
    "fp16": 2**-10,
    "int8": BLOCK**0.5 / (2 * 127),
    "int4": INT4_BLOCK**0.5 / (2 * 7),
}


def encoded_size(codec: Codec, length: int) -> int:
    match codec:
        case "fp32":
            return 4 * length
        case "fp16":
            return EXPONENT_BYTES + 2 * length
        case "int8":
            return 4 * -(-length // BLOCK) + length
        case "int4":
            return 4 * -(-length // INT4_BLOCK) + -(-length // 2)
        case _:
            assert_never(codec)
