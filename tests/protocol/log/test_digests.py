"""The digest of a replica's state, which is cheap to compute."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer_agent.protocol.log.digests import BLOCK, POSITION, state_digest

GOLDEN = "980264287a6a0000"


def by_hand(*arrays: NDArray[np.float32]) -> str:
    total, place = 0, 0
    for array in arrays:
        for bits in np.asarray(array, dtype=np.float32).reshape(-1).view(np.int32).tolist():
            total += bits * ((place * POSITION) % 2**64 | 1)
            place += 1
    return f"{total % 2**64:016x}"


@given(st.lists(st.lists(st.floats(width=32), max_size=20), max_size=4))
def test_it_is_the_sum_that_it_says(values: list[list[float]]) -> None:
    arrays = [np.array(row, dtype=np.float32) for row in values]
    assert state_digest(*arrays) == by_hand(*arrays)


def test_golden_digest() -> None:
    assert state_digest(np.arange(1000, dtype=np.float32), np.ones((3, 4), dtype=np.float32)) == GOLDEN


def test_digest_ignores_array_bounds_but_not_bits_or_order() -> None:
    whole = np.linspace(-1, 1, 2 * BLOCK + 3, dtype=np.float32)
    digest = state_digest(whole)
    assert state_digest(whole[:5], whole[5 : BLOCK + 9], whole[BLOCK + 9 :]) == digest
    assert state_digest(whole[::-1]) != digest
    other = whole.copy()
    other[BLOCK] = np.nextafter(other[BLOCK], np.float32(2))
    assert state_digest(other) != digest
    assert state_digest(np.array([-0.0], dtype=np.float32)) != state_digest(np.array([0.0], dtype=np.float32))
