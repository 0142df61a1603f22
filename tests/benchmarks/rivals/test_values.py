"""A rival's result shows how much of it is the true mean of all peers."""

import numpy as np
import pytest

from tests.benchmarks.rivals import values

SIZES = (values.PART + 1000, 3000)


def filled(seed: int, shift: float) -> list[values.Vector]:
    vectors = [np.zeros(size, np.float32) for size in SIZES]
    values.fill(vectors, seed, shift)
    return vectors


def mean_of(indexes: list[int], peers: int) -> list[values.Vector]:
    given = [filled(7, values.shift_of(index, peers)) for index in indexes]
    means = [np.mean([vectors[i] for vectors in given], axis=0) for i in range(len(SIZES))]
    return [mean.astype(np.float16).astype(np.float32) for mean in means]


@pytest.mark.parametrize("peers", [2, 3, 4, 8, 16, 24])
def test_the_mean_of_all_is_right_and_nothing_else_is(peers: int) -> None:
    everybody, shift = list(range(peers)), values.mean_shift(peers)
    assert values.right_part(mean_of(everybody, peers), 7, shift) == 1.0
    for missing in everybody:
        rest = [index for index in everybody if index != missing]
        assert values.right_part(mean_of(rest, peers), 7, shift) == 0.0
        assert values.right_part(filled(7, values.shift_of(missing, peers)), 7, shift) == 0.0


def test_values_of_another_round_are_not_right() -> None:
    assert values.right_part(mean_of([0, 1], 2), 8, values.mean_shift(2)) < 0.1


def test_a_part_that_kept_its_own_values_is_counted() -> None:
    vectors = mean_of([0, 1, 2, 3], 4)
    vectors[0][:1000] += 1.0
    whole = sum(SIZES)
    assert values.right_part(vectors, 7, values.mean_shift(4)) == pytest.approx((whole - 1000) / whole)


@pytest.mark.parametrize(("kind", "finite", "times"), [("none", 1.0, 1.0), ("nan", 0.0, None), ("x1000", 1.0, 1000.0)])
def test_values_of_a_hostile_peer_are_seen_beside_the_true_mean(kind: str, finite: float, times: float | None) -> None:
    vectors, shift = filled(7, values.mean_shift(4)), values.mean_shift(4)
    values.spoil(vectors, kind)
    assert values.beside_mean(vectors, 7, shift) == {"finite": finite, "times": pytest.approx(times) if times else None}
