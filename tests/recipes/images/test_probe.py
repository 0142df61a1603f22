"""The linear probe: what it finds, and what it cannot."""

import numpy as np
import pytest
from numpy.typing import NDArray

from peer_agent.recipes.images.probe import DECAY, Labelled, _fitted, probe_accuracy

CLASSES, FEATURES = 5, 12


def drawn(seed: int, images: int, spread: float) -> Labelled:
    """Clouds of points around a centre for each class, along axes of unlike scales."""
    centres = np.random.Generator(np.random.Philox(1)).standard_normal((CLASSES, FEATURES))
    chance = np.random.Generator(np.random.Philox(seed))
    labels = chance.integers(0, CLASSES, images)
    points = centres[labels] + spread * chance.standard_normal((images, FEATURES))
    scales = 10.0 ** np.arange(-4, FEATURES - 4)
    return Labelled((points * scales + 3 * scales).astype(np.float32), labels)


@pytest.mark.parametrize(("spread", "least", "most"), [(0.1, 1.0, 1.0), (1.5, 0.6, 0.95), (50.0, 0.1, 0.35)])
def test_it_names_what_lies_apart(spread: float, least: float, most: float) -> None:
    accuracy = probe_accuracy(drawn(2, 600, spread), drawn(3, 400, spread))
    assert least <= accuracy <= most
    assert accuracy == probe_accuracy(drawn(2, 600, spread), drawn(3, 400, spread))


def test_it_is_measured_on_what_it_has_not_learned() -> None:
    few, others = drawn(2, 20, 20.0), drawn(3, 400, 20.0)
    assert probe_accuracy(few, few) == 1.0
    assert probe_accuracy(few, others) < 0.5


def test_a_feature_that_never_changes_changes_nothing() -> None:
    def widened(of: Labelled) -> Labelled:
        return Labelled(np.hstack([of.features, np.full((len(of.labels), 1), 7, np.float32)]), of.labels)

    learned, held = drawn(2, 300, 1.5), drawn(3, 200, 1.5)
    assert probe_accuracy(widened(learned), widened(held)) == probe_accuracy(learned, held)


def test_no_small_move_of_the_weights_is_better() -> None:
    chance = np.random.Generator(np.random.Philox(4))
    features, labels = chance.standard_normal((80, 4)), chance.integers(0, 3, 80)
    weights = _fitted(features, labels)

    def loss(of: NDArray[np.float64]) -> float:
        scores = features @ of
        right = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(80), labels]
        return float(right.mean() + DECAY * (of**2).sum() / 2)

    moves = [1e-2 * chance.standard_normal(weights.shape) for _ in range(50)]
    assert all(loss(weights) < loss(weights + move) for move in moves)


def test_nothing_is_nothing_to_learn_from() -> None:
    some, none = drawn(2, 10, 1.0), Labelled(np.zeros((0, FEATURES), np.float32), np.zeros(0, np.int64))
    for learned, held in ((some, none), (none, some)):
        with pytest.raises(ValueError, match="a probe needs"):
            probe_accuracy(learned, held)
