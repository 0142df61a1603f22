"""The benchmark detects growth regardless of start-up memory, and does not mistake a single peak for growth."""

import pytest

from tests.benchmarks.measures.growth import allowed_mb, growth_mb, memory_of


def test_a_process_that_comes_up_and_then_stays_has_not_grown() -> None:
    looks = [50.0] * 10 + [80.0] * 90
    looks[95] = 200.0
    assert growth_mb(looks) == 0.0


def test_a_slope_is_found_as_it_is() -> None:
    found = memory_of([100 + 0.1 * number for number in range(500)], peak_mb=151.0, rounds=500)
    assert found["mb_per_100_rounds"] == pytest.approx(10.0, rel=0.01)
    assert found["peak_mb"] == 151.0


def test_three_vectors_and_two_hundred_megabytes_are_allowed() -> None:
    assert allowed_mb(500_000) == 206.0
