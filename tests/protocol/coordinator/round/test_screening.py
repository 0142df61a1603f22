"""The gross-error bound of rule 12: honest peers never notice it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.coordinator.round.screening import GROSS, scales_of


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=50), st.data())
def test_honest_norms_are_left_alone(norms: list[float], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(1, 5000), min_size=len(norms), max_size=len(norms)))
    assert scales_of(norms, tokens) == [1.0] * len(norms)


def test_small_batches_may_be_noisier_by_the_root_of_their_size() -> None:
    norms, tokens = [1.0, 1.0, 1.0, 39.0], [1600, 1600, 1600, 100]
    assert scales_of(norms, tokens) == [1.0] * 4
    assert scales_of([1.0, 1.0, 1.0, 41.0], tokens)[3] == pytest.approx(40 / 41)


def test_a_gross_error_is_brought_to_the_bound() -> None:
    scales = scales_of([1.0, 2.0, 3.0, 1e6], [100] * 4)
    assert scales[:3] == [1.0] * 3
    assert scales[3] * 1e6 == pytest.approx(GROSS * 2.5)


def test_large_batches_get_no_tighter_bound() -> None:
    assert scales_of([1.0, 1.0, 9.9], [100, 100, 10_000]) == [1.0] * 3


@pytest.mark.parametrize("norms", [[7.0], [0.0], [0.0, 0.0], [1e308, 1.0]])
def test_one_or_two_offers_are_never_clipped(norms: list[float]) -> None:
    assert scales_of(norms, [10] * len(norms)) == [1.0] * len(norms)


@given(st.lists(st.tuples(st.just(0.0) | st.floats(1e-9, 1e9), st.integers(1, 10**6)), min_size=1, max_size=30))
def test_scales_are_between_nothing_and_one(offers: list[tuple[float, int]]) -> None:
    scales = scales_of([norm for norm, _ in offers], [tokens for _, tokens in offers])
    assert all(0.0 <= scale <= 1.0 for scale in scales)
    same = sorted((norm, scale) for (norm, tokens), scale in zip(offers, scales, strict=True) if tokens == offers[0][1])
    assert all(a[0] * a[1] <= b[0] * b[1] * (1 + 1e-12) for a, b in pairwise(same)), "clipping keeps the order"
