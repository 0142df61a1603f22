"""Sums of squares are those of the plain tree, to the last bit, alone and together."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peer_agent.averaging.squares import sums_of_squares
from tests.averaging.definition import sum_of_squares

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
