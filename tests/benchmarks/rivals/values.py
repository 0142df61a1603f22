"""Each peer's values in a round: noise that all peers share, plus a shift of the peer's own.

Every peer therefore knows the true mean without a message, and the result shows which peers were missing. No vector is
stored, because the noise is generated again, part by part.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

PART = 1 << 16  # elements
SPREAD = 0.25  # standard deviation of the noise
TOLERANCE = 0.01  # allows for half precision; with up to 30 peers, a missing peer moves the mean by more


def shift_of(index: int, peers: int) -> float:
    """Return a peer's shift, which is far from the mean of all shifts."""
    return (1.0 if index % 2 else -1.0) * (1.0 + index / peers)


def mean_shift(peers: int) -> float:
    return sum(shift_of(index, peers) for index in range(peers)) / peers


def noise(elements: int, seed: int) -> Iterator[Vector]:
    for number, first in enumerate(range(0, elements, PART)):
        drawn = np.random.default_rng((seed, number)).standard_normal(min(PART, elements - first), dtype=np.float32)
        yield np.float32(SPREAD) * drawn


def fill(vectors: Sequence[Vector], seed: int, shift: float) -> None:
    for number, vector in enumerate(vectors):
        for index, part in enumerate(noise(vector.size, seed + number)):
            vector[index * PART : index * PART + part.size] = part + np.float32(shift)


def right_part(vectors: Sequence[Vector], seed: int, shift: float) -> float:
    """Return the fraction of the values, from 0 to 1, that equal the noise plus this shift."""
    right = 0
    for number, vector in enumerate(vectors):
        for index, part in enumerate(noise(vector.size, seed + number)):
            beside = vector[index * PART : index * PART + part.size] - part
            right += int(np.count_nonzero(np.abs(beside - np.float32(shift)) < TOLERANCE))
    return right / sum(vector.size for vector in vectors)


def spoil(vectors: Sequence[Vector], kind: str) -> None:
    """Make the values what a hostile peer might send: not numbers, or a thousand times too large."""
    factor = {"none": 1.0, "nan": np.nan, "x1000": 1000.0}[kind]
    for vector in vectors:
        vector[:] = vector * np.float32(factor)


def beside_mean(vectors: Sequence[Vector], seed: int, shift: float) -> dict[str, float | None]:
    """Return the share of finite values, and the norm divided by that of the noise plus this shift.

    The quotient is None if any value is not finite.
    """
    finite = sum(int(np.isfinite(vector).sum()) for vector in vectors) / sum(vector.size for vector in vectors)
    true = [np.zeros_like(vector) for vector in vectors]
    fill(true, seed, shift)
    norms = [
        float(np.sqrt(sum(np.square(vector, dtype=np.float64).sum() for vector in each))) for each in (vectors, true)
    ]
    return {"finite": finite, "times": norms[0] / norms[1] if finite == 1.0 else None}
