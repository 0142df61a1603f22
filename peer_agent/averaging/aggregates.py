"""Ways to combine the contributors' values of one chunk into its average.

`Reduction` opens one aggregate per chunk, adds each slot's checked values once, and closes it. An aggregate may keep
the values of all slots until it is closed. Under a plan with deadlines, a reducer reads no further from a slot that is
far ahead of the others, which limits the number of open chunks (`relay.reducing.is_ahead`).
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats
from peer_agent.protocol.recipe import AveragingRule

Doubles = NDArray[np.float64]
Room = Callable[[int], Floats]  # returns an array of this many float32 elements, with any contents


class Aggregate(Protocol):
    """The values of one chunk [n] so far."""

    tokens: int  # of all slots added

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        """Add a slot's values [n], averaged over `tokens` loss tokens. `scale` is the slot's clipping factor (rule 12).

        The caller reuses the memory of `values`, and this call may overwrite it.
        """
        ...

    def close(self) -> Floats:
        """Return the average [n]. The aggregate must not be used afterwards."""
        ...


class Mean:
    """The mean weighted by tokens: one float32 sum, however many slots there are. Scales affect only the numerator."""

    def __init__(self, room: Room) -> None:
        self.tokens = 0
        self._room = room
        self._sum: Floats | None = None

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        del slot
        factor = np.float32(scale * tokens)
        if self._sum is None:
            self._sum = np.multiply(values, factor, out=self._room(values.size))
        else:
            np.multiply(values, factor, out=values)
            self._sum += values
        self.tokens += tokens

    def close(self) -> Floats:
        assert self._sum is not None
        return np.multiply(self._sum, np.float32(1 / self.tokens), out=self._sum)


MEDIAN_STEPS, CLIP_STEPS = 100, 8  # iterations; each takes one product with the Gram matrix
LEAST = 1e-6  # fraction of the typical norm; a nearer slot counts as if it were this far from the centre


class Robust:
    """An aggregate that keeps the values of all slots, and returns a weighted sum of them.

    `coefficients` computes the slots' coefficients from their Gram matrix [slots, slots] and their weights [slots],
    which sum to 1. The matrix takes one multiplication per element and pair of slots, however many steps follow.
    """

    def __init__(self, room: Room, coefficients: Callable[[Doubles, Doubles], Doubles]) -> None:
        self.tokens = 0
        self._room, self._coefficients = room, coefficients
        self._values, self._weights = list[Floats](), list[int]()

    def add(self, slot: int, values: Floats, tokens: int, scale: float) -> None:
        del slot
        self._values.append(np.multiply(values, np.float32(scale), out=self._room(values.size)))
        self._weights.append(tokens)
        self.tokens += tokens

    def close(self) -> Floats:
        stacked, weights = np.stack(self._values), np.array(self._weights, np.float64)
        found = self._coefficients((stacked @ stacked.T).astype(np.float64), weights / weights.sum())
        return np.matmul(found.astype(np.float32), stacked, out=self._room(stacked.shape[1]))


def geometric_median(gram: Doubles, weights: Doubles) -> Doubles:
    """Return the coefficients of the point with the least weighted sum of distances to all slots.

    Weiszfeld's iteration from the mean (Pillutla, Kakade and Harchaoui, arXiv 1912.13445), on the Gram matrix.
    """
    found, least = weights, LEAST * np.sqrt(np.median(np.diag(gram)))
    for _ in range(MEDIAN_STEPS):
        drawn = weights / np.maximum(_distances(gram, found), least or 1.0)
        found = drawn / drawn.sum()
    return found


def centered_clip(gram: Doubles, weights: Doubles, radius: float | None = None) -> Doubles:
    """Return the coefficients of a centre that each slot moves by at most `radius` times its weight in each step.

    The centre begins at zero (Karimireddy, He and Jaggi, arXiv 2012.10333). None: the weighted median of the slots'
    distances from the present centre.
    """
    found = np.zeros_like(weights)
    for _ in range(CLIP_STEPS):
        distances = _distances(gram, found)
        limit = _weighted_median(distances, weights) if radius is None else radius
        moved = weights * np.minimum(1.0, limit / np.maximum(distances, np.finfo(np.float64).tiny))
        found = found * (1 - moved.sum()) + moved
    return found


def _distances(gram: Doubles, found: Doubles) -> Doubles:
    """Return each slot's distance from the sum with these coefficients."""
    squares = np.diag(gram) - 2 * gram @ found + found @ gram @ found
    return np.sqrt(np.maximum(squares, 0.0))


def _weighted_median(values: Doubles, weights: Doubles) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])


AGGREGATES: dict[AveragingRule, Callable[[Room], Aggregate]] = {
    "mean": Mean,
    "geometric median": partial(Robust, coefficients=geometric_median),
    "centered clip": partial(Robust, coefficients=centered_clip),
}
