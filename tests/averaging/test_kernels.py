"""Half-precision casts (by arithmetic, by table and by torch), levels and sums of squares match numpy's bit for bit."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from peer_agent.averaging.kernels import (
    BLOCK,
    SMALLEST_SCALE,
    Bits,
    Floats,
    from_halves,
    multiply,
    sums_of_squares,
    to_halves,
    to_levels,
)
from tests.averaging.definition import sum_of_squares

ALL = np.arange(2**16, dtype=np.uint16)
LARGEST = np.float32(65504)


@pytest.fixture(params=["numpy", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test twice: with torch imported, and as if torch were not installed."""
    if request.param == "torch":
        import torch  # noqa: F401
    else:
        monkeypatch.setitem(sys.modules, "torch", None)


def rounded(values: Floats) -> tuple[Bits, NDArray[np.uint32]]:
    halves, magnitudes = np.empty(values.size, np.uint16), values.copy()
    to_halves(magnitudes, halves)
    return halves, np.abs(magnitudes).view(np.uint32)


def check(values: Floats) -> None:
    with np.errstate(all="ignore"):
        wanted = values.astype(np.float16)
    halves, magnitudes = rounded(values)
    assert np.array_equal(halves, wanted.view(np.uint16))
    assert np.array_equal(magnitudes, np.abs(wanted.astype(np.float32)).view(np.uint32))


@pytest.mark.usefixtures("by")
def test_every_half_is_read_as_what_it_stands_for() -> None:
    values = np.empty(ALL.size, np.float32)
    from_halves(ALL, values)
    assert np.array_equal(values, ALL.view(np.float16).astype(np.float32), equal_nan=True)
    assert np.array_equal(np.signbit(values), ALL >= 2**15)


@pytest.mark.usefixtures("by")
def test_halves_are_read_from_any_address_and_byte_order() -> None:
    unaligned, values = np.frombuffer(b"?" + ALL.tobytes(), "<u2", offset=1), np.empty(ALL.size, np.float32)
    for source in (unaligned, ALL.astype(">u2")):
        from_halves(source, values)
        assert np.array_equal(values, ALL.view(np.float16).astype(np.float32), equal_nan=True)


@pytest.mark.usefixtures("by")
def test_every_finite_half_is_written_as_itself() -> None:
    halves = ALL[(ALL & 0x7C00) != 0x7C00]
    written, _ = rounded(halves.view(np.float16).astype(np.float32))
    assert np.array_equal(written, halves)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("sign", [0, 1])
def test_numbers_of_every_exponent_are_rounded_to_even(sign: int) -> None:
    """The values include ties, their neighbours, and low bits that would expose double rounding."""
    places = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FEFFF, 0x7FF000, 0x7FFFFF], np.uint32)
    exponents = np.arange(2**8, dtype=np.uint32) << 23
    random = np.random.default_rng(3).integers(0, 2**23, 400, np.uint32)
    bits = exponents[:, np.newaxis] | np.concatenate([places, random, random << 13 & 0x7FFFFF | 0x1000])
    values = (bits.reshape(-1) | np.uint32(sign << 31)).view(np.float32)
    check(values[np.abs(values) <= LARGEST])


@pytest.mark.usefixtures("by")
def test_the_ties_of_subnormal_halves_are_rounded_to_even() -> None:
    ties = (np.arange(2048, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-24)
    check(np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1)), -ties]))


@pytest.mark.usefixtures("by")
def test_more_than_a_block_at_once() -> None:
    check(np.random.default_rng(4).standard_normal(2 * BLOCK + 3).astype(np.float32))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=finite))
def test_each_row_is_the_plain_tree(rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    assert sums_of_squares(rows) == [sum_of_squares(row) for row in rows]


@pytest.mark.parametrize("length", [1, 2, 3, 1023, 1024, 1025, 16_384, 65_537])
def test_long_rows_of_all_sizes_of_numbers(length: int) -> None:
    bits = np.random.default_rng(length).integers(0, 2**32, (3, length), np.uint32) & np.uint32(0xBF7FFFFF)
    rows = bits.view(np.float32)
    assert sums_of_squares(rows) == [sum_of_squares(row) for row in rows]


def test_another_order_would_come_to_other_bits() -> None:
    rows = np.random.default_rng(1).standard_normal((20, 1000)).astype(np.float32)
    assert sums_of_squares(rows) != np.sum(rows.astype(np.float64) ** 2, axis=1).tolist()


def test_what_is_not_finite_shows_in_its_own_row() -> None:
    rows = np.ones((3, 5), np.float32)
    rows[0, 4], rows[1, 2] = math.nan, -math.inf
    nan, infinite, five = sums_of_squares(rows)
    assert math.isnan(nan)
    assert (infinite, five) == (math.inf, 5)


def test_of_nothing() -> None:
    assert sums_of_squares(np.zeros((2, 0), np.float32)) == [0, 0]


LARGEST_FLOAT = np.finfo(np.float32).max


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
@pytest.mark.parametrize("peak", [LARGEST_FLOAT, SMALLEST_SCALE, np.finfo(np.float32).smallest_subnormal, 0])
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
