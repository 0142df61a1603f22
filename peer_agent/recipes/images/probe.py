"""A linear probe (arXiv 1610.01644): how much of the classes a linear classifier finds in features."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

DECAY = 1e-4  # of weights, beside the mean loss
MOST_STEPS = 200


class Labelled(NamedTuple):
    """Features [images, features], and the class of each image."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]


def probe_accuracy(learned: Labelled, held: Labelled) -> float:
    """The share of `held` that a softmax regression on `learned` names rightly. The same each time.

    Features are brought to mean 0 and deviation 1 of those learned from. Time: images times features times classes,
    at most MOST_STEPS times. Raises ValueError where one of both is empty.
    """
    if not learned.labels.size or not held.labels.size:
        raise ValueError("a probe needs images to learn from, and others to name")
    mean, deviation = learned.features.mean(axis=0), learned.features.std(axis=0)
    scaled = [_scaled(part.features, mean, deviation) for part in (learned, held)]
    weights = _fitted(scaled[0], learned.labels)
    return float((np.argmax(scaled[1] @ weights, axis=1) == held.labels).mean())


def _scaled(
    features: NDArray[np.float32], mean: NDArray[np.float32], deviation: NDArray[np.float32]
) -> NDArray[np.float64]:
    """With a column of ones behind them. A feature that never changes is 0."""
    steady = np.where(deviation > 0, deviation, np.inf)
    return np.hstack([(features - mean) / steady, np.ones((len(features), 1))]).astype(np.float64)


def _fitted(features: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weights [features, classes] of the least regularized mean loss."""
    classes = int(labels.max()) + 1
    wanted = np.eye(classes)[labels]

    def loss_of(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(-1, classes)
        found = log_softmax(features @ weights, axis=1)
        loss = -float((wanted * found).sum()) / len(labels) + DECAY * float((weights * weights).sum()) / 2
        slope = features.T @ (np.exp(found) - wanted) / len(labels) + DECAY * weights
        return loss, slope.ravel()

    begin = np.zeros(features.shape[1] * classes)
    found: NDArray[np.float64] = minimize(
        loss_of, begin, jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS}
    ).x
    return found.reshape(-1, classes)
