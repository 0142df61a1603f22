import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.sketches import BUCKETS, Signs
from peer_agent.protocol.coordinator.round.audits import Numbers, agreement

ELEMENTS = 4096


def sketch_of(gradient: Floats, seed: int = 7, chunk: int = ELEMENTS) -> Numbers:
    signs, sketch = Signs(seed, chunk), np.zeros(BUCKETS, np.float32)
    for number, start in enumerate(range(0, gradient.size, chunk)):
        signs.add(number, np.ascontiguousarray(gradient[start : start + chunk]), sketch)
    return sketch.astype(np.float64)


def gradient(seed: int, size: int = 10 * ELEMENTS + 333) -> Floats:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_signs_are_the_same_in_all_versions() -> None:
    """Machines with different versions of numpy compare their sketches. All these sums are whole numbers."""
    sketch = sketch_of(np.arange(3 * ELEMENTS, dtype=np.float32))
    assert [float(value) for value in sketch[:4]] == [23134.0, 31026.0, -45606.0, -35550.0]


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("truth", [1.0, 0.9, 0.5, 0.0, -1.0])
def test_cosine_and_norms_of_sketches_are_about_those_of_the_gradients(seed: int, truth: float) -> None:
    one, other = gradient(1), gradient(2)
    mixed = (truth * one + np.sqrt(1 - truth**2) * other).astype(np.float32)
    cosine, ratio = agreement(sketch_of(one, seed), sketch_of(mixed, seed))
    assert cosine == pytest.approx(truth, abs=1e-5 + 4 * (1 - truth**2) / np.sqrt(BUCKETS))
    assert ratio == pytest.approx(1.0, abs=0.25)


def test_small_differences_are_measured_precisely() -> None:
    """Rounding, or an update of age one, changes a gradient's direction by about this much."""
    one, noise = gradient(1), gradient(2)
    cosines = [
        agreement(sketch_of(one, seed), sketch_of((one + 0.1 * noise).astype(np.float32), seed))[0]
        for seed in range(20)
    ]
    assert min(cosines) > 0.99
    assert max(cosines) < 0.999


@given(st.integers(1, 2**53), st.integers(1, 700))
def test_sketches_are_linear(seed: int, size: int) -> None:
    one, other = gradient(3, size), gradient(4, size)
    together = sketch_of((one + other).astype(np.float32), seed, 256)
    np.testing.assert_allclose(together, sketch_of(one, seed, 256) + sketch_of(other, seed, 256), atol=1e-4)


def test_gradient_made_for_one_seed_is_found_with_another() -> None:
    """A vector outside the sketch's reach, added to a gradient, does not change the sketch for which it was made."""
    one, other = gradient(1, ELEMENTS), gradient(2, ELEMENTS)
    signs = np.array([sketch_of(row, 7) for row in np.eye(ELEMENTS, dtype=np.float32)])  # [elements, buckets]
    outside = other - signs @ np.linalg.lstsq(signs, other, rcond=None)[0].astype(np.float32)
    false = (one + 5 * outside).astype(np.float32)
    assert agreement(sketch_of(one, 7), sketch_of(false, 7))[0] > 0.999
    assert agreement(sketch_of(one, 8), sketch_of(false, 8))[0] < 0.5


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_sketch_without_finite_norm_agrees_with_none(value: float) -> None:
    odd = np.full(BUCKETS, value)
    assert agreement(odd, np.ones(BUCKETS)) == (0.0, 0.0)
