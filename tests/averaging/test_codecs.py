"""Codecs: error bounds, extreme values, stability, arbitrary bytes, and equal bytes with and without torch."""

import hashlib
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from peer_agent.averaging.codecs import (
    EXPONENT,
    Floats,
    decode,
    decode_with_leaf,
    encode,
    encode_with_leaves,
    sum_squares,
)
from peer_agent.protocol.codec_sizes import ERROR, encoded_size
from peer_agent.protocol.log.merkle import leaf_of
from peer_agent.protocol.recipe import Codec
from tests.averaging import definition

CODECS: tuple[Codec, ...] = get_args(Codec)
LARGEST, SUBNORMAL = float(np.finfo(np.float32).max), float(np.finfo(np.float32).smallest_subnormal)
EXTREMES: dict[str, list[float]] = {
    "zeros": [0.0] * 5,
    "negative zero": [-0.0, 0.0],
    "largest": [LARGEST, -LARGEST, 0.0],
    "smallest": [SUBNORMAL, -SUBNORMAL, 0.0, 3 * SUBNORMAL],
    "both": [LARGEST, SUBNORMAL, 1.0],
    "rounds up to a power of two": [float(np.nextafter(np.float32(1), np.float32(0))), 2**-25, 2**-24 * 1.5],
    "one": [1.0],
}

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Values of similar size, as gradients have. Values of very different sizes exceed any codec's error bound.
of_one_size = st.builds(
    lambda values, exponent: np.ldexp(values, exponent).astype(np.float32),
    arrays(np.float32, st.integers(1, 3000), elements=st.floats(-2, 2, width=32)),
    st.integers(-149, 126),
)
chunks = arrays(np.float32, st.integers(1, 40), elements=finite) | of_one_size
codecs = st.sampled_from(CODECS)


def bound(codec: Codec, values: Floats) -> NDArray[np.float64]:
    magnitudes = np.abs(values.astype(np.float64))
    if codec == "fp32":
        return 0 * magnitudes
    if codec == "fp16":
        return magnitudes * 2.0**-11 + float(magnitudes.max()) * 2.0**-39
    block, top = definition.BLOCKS[codec]
    peaks = np.repeat([magnitudes[i : i + block].max() for i in range(0, values.size, block)], block)
    largest: NDArray[np.float64] = np.maximum(peaks[: values.size] / (2 * top), 2**-127) * (1 + 1e-6)
    return largest


@given(codecs, chunks)
def test_decoded_values_are_as_near_as_the_codec_promises(codec: Codec, values: Floats) -> None:
    decoded = decode(codec, encode(codec, values), values.size)
    assert decoded.dtype == np.float32
    assert (np.abs(decoded.astype(np.float64) - values) <= bound(codec, values)).all()


@given(codecs, chunks)
def test_encoding_changes_the_norm_no_more_than_is_allowed(codec: Codec, values: Floats) -> None:
    wide = values.astype(np.float64)
    lost = decode(codec, encode(codec, values), values.size).astype(np.float64) - wide
    smallest = values.size**0.5 * 2.0**-126  # scales are never subnormal
    assert np.linalg.norm(lost) <= ERROR[codec] * np.linalg.norm(wide) * (1 + 1e-6) + smallest


@given(codecs, chunks)
def test_encoding_what_was_decoded_gives_the_same_bytes(codec: Codec, values: Floats) -> None:
    data = encode(codec, values)
    assert encode(codec, decode(codec, data, values.size)) == data
    assert len(data) == encoded_size(codec, values.size)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(codec: Codec, name: str) -> None:
    values = np.array(EXTREMES[name], np.float32)
    data = encode(codec, values)
    decoded = decode(codec, data, values.size)
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded.astype(np.float64) - values) <= bound(codec, values)).all()
    assert encode(codec, decoded) == data


@given(codecs, chunks)
def test_the_bytes_are_those_of_the_definition(codec: Codec, values: Floats) -> None:
    assert encode(codec, values) == definition.encoded(codec, values)


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_encoded_together_match_chunks_encoded_alone(codec: Codec) -> None:
    rows = np.array(many_values())
    for row, extremes in enumerate(EXTREMES.values()):
        rows[row, : len(extremes)] = extremes
    wanted = [definition.encoded(codec, row) for row in rows]
    room = np.empty((len(rows), encoded_size(codec, rows.shape[1])), np.uint8)
    together = encode_with_leaves(codec, rows.copy(), room)
    assert [bytes(payload) for payload, _ in together] == wanted
    for data, (_, leaf) in zip(wanted, together, strict=True):
        values = definition.decoded(codec, data, rows.shape[1])
        assert leaf == leaf_of(data, definition.sum_of_squares(values))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_what_is_not_finite_is_not_encoded(codec: Codec, bad: float, place: int) -> None:
    values = np.ones(3000, np.float32)
    values[place] = bad
    with pytest.raises(ValueError, match="not finite"):
        encode(codec, values)


@given(st.data(), codecs, st.integers(1, 2100))
def test_any_bytes_decode(data: st.DataObject, codec: Codec, length: int) -> None:
    head = data.draw(st.binary(max_size=64))
    size = encoded_size(codec, length)
    values = np.empty(length, np.float32)
    leaf = decode_with_leaf(codec, (head * (size // max(len(head), 1) + 1)).ljust(size, b"\xff")[:size], values)
    assert math.isfinite(leaf.sum_squares) == bool(np.isfinite(values).all())


@given(st.data(), codecs, st.integers(1, 2100))
def test_any_bytes_decode_as_the_definition_says(data: st.DataObject, codec: Codec, length: int) -> None:
    size = encoded_size(codec, length)
    head = data.draw(st.binary(min_size=size % 8192, max_size=size % 8192))
    payload = (head * 3).ljust(size, b"\x7b")[:size]
    wanted = definition.decoded(codec, payload, length)
    values = decode(codec, payload, length)
    assert np.array_equal(values, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(values), np.signbit(wanted))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("error", [-1, 1])
def test_another_number_of_bytes_is_refused(codec: Codec, error: int) -> None:
    with pytest.raises(ValueError, match="1500 values take"):
        decode(codec, bytes(encoded_size(codec, 1500) + error), 1500)


@pytest.mark.parametrize("exponent", [-32768, -127, 114, 32767])
def test_an_exponent_that_nobody_writes_is_not_finite(exponent: int) -> None:
    assert math.isnan(sum_squares(decode("fp16", EXPONENT.pack(exponent) + bytes(20), 10)))


def test_small_gradients_survive_half_precision() -> None:
    """Without a scale, half precision would turn gradients of 3e-9 into subnormals or zero (rule 34)."""
    values = np.full(100, 3e-9, np.float32)
    assert np.abs(decode("fp16", encode("fp16", values), 100) / values - 1).max() < 2**-11


@pytest.mark.parametrize("codec", definition.BLOCKS)
@pytest.mark.parametrize("more", [1, 2, 3])
def test_the_last_block_may_be_short(codec: Codec, more: int) -> None:
    block, _ = definition.BLOCKS[codec]
    values = np.concatenate([np.full(block, 1000, np.float32), np.full(more, 0.001, np.float32)])
    assert (decode(codec, encode(codec, values), values.size)[block:] == np.float32(0.001)).all()


def test_two_integers_of_four_bits_share_a_byte() -> None:
    """A chunk's first half goes into the low bits of the bytes, and its second half into the high bits."""
    data = encode("int4", np.array([7, -7, 1, -1, 3], np.float32))
    assert data == struct.pack("<f", 1) + bytes([0xF7, 0x39, 0x01])


def test_what_no_encoder_writes_in_four_bits_is_a_number_too() -> None:
    assert decode("int4", struct.pack("<f", 2) + b"\x88", 2).tolist() == [-16, -16]


@pytest.mark.parametrize("codec", definition.BLOCKS)
@pytest.mark.parametrize("scale", [math.nan, math.inf, 3e38])
def test_a_scale_that_nobody_writes_is_not_finite(codec: Codec, scale: float) -> None:
    data = struct.pack("<f", scale) + b"\x77" * (encoded_size(codec, 10) - 4)
    assert not math.isfinite(sum_squares(decode(codec, data, 10)))


def test_small_blocks_limit_the_error_of_int4_with_heavy_tails() -> None:
    """If 1024 values shared a scale, the relative RMS error would be 0.14 for normal values and 0.39 with heavy
    tails."""
    random = np.random.default_rng(1)
    for values, most in ((random.standard_normal(2**16), 0.12), (random.standard_t(3, 2**16), 0.23)):
        floats = values.astype(np.float32)
        error = decode("int4", encode("int4", floats), floats.size) - floats
        assert np.linalg.norm(error) < most * np.linalg.norm(floats)


@given(chunks)
def test_sum_of_squares(values: Floats) -> None:
    assert math.isclose(sum_squares(values), math.fsum(float(v) ** 2 for v in values), rel_tol=1e-12)


def test_sum_of_squares_of_what_is_not_finite() -> None:
    assert math.isnan(sum_squares(np.array([1, math.nan, math.inf], np.float32)))
    assert sum_squares(np.array([1, -math.inf, 2], np.float32)) == math.inf
    assert sum_squares(np.zeros(0, np.float32)) == 0


@given(codecs, chunks)
def test_the_leaf_is_of_the_bytes_and_the_decoded_values(codec: Codec, values: Floats) -> None:
    data = encode(codec, values)
    decoded = np.empty(values.size, np.float32)
    leaf = decode_with_leaf(codec, memoryview(b"head" + data)[4:], decoded)
    assert leaf == leaf_of(data, sum_squares(decoded))


def many_values() -> list[Floats]:
    """Return finite values built from integer bit patterns, because values from math functions may differ between
    machines.
    """
    bits = np.random.default_rng(5).integers(0, 2**32, (12, 2500), np.uint32)
    same_size = [(row & np.uint32(0x81FFFFFF)) | np.uint32(e << 25) for e, row in enumerate(bits, 20)]
    return [row.view(np.float32) for row in [*(bits & np.uint32(0xBF7FFFFF)), *same_size]]


def digest_of_everything(codec: Codec) -> str:
    digest = hashlib.sha256()
    for values in many_values():
        data = encode(codec, values)
        decoded = np.empty(values.size, np.float32)
        leaf = decode_with_leaf(codec, data, decoded)
        digest.update(data + decoded.tobytes() + leaf.pack())
    return digest.hexdigest()


GOLDEN: dict[Codec, str] = {
    "fp32": "17aa9ab24d9577ae740b2abd2defd3a370df22b626ec4f38a28955f81468073a",
    "fp16": "e479e641e21c51ac1eb7f42c2aa9a2f047bb4d3d7dc6a55ebd617d55f9df1272",
    "int8": "288eca0b4d0018e0d8041ac1f901a71b3cd5616b1d8649bc5d9b29f5b27b2140",
    "int4": "927a326be06f28e3b95df22d81cd4ca800e1a007fa1ffbaf65e2377d4c00716b",
}


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_are_golden(codec: Codec) -> None:
    """Every machine must produce the same digests. Changing a digest means changing the protocol."""
    assert digest_of_everything(codec) == GOLDEN[codec]


def test_torch_changes_no_byte() -> None:
    import torch

    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tests.averaging.test_codecs import CODECS, digest_of_everything\n"
        "print(*map(digest_of_everything, CODECS))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert sys.modules["torch"] is torch
    assert done.stdout.split() == [digest_of_everything(codec) for codec in CODECS]
