"""What each peer gives to a round: noise that all have in common, and a shift of its own.

So the true mean is known to everybody without a word, and what comes out tells where somebody was missing. No vector
is kept for it: the noise is drawn again, part by part.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

PART = 1 << 16  # elements
SPREAD = 0.25  # of the noise
TOLERANCE = 0.01  # of half precision here; whoever is missing moves the mean by more, of up to 30 peers


def shift_of(index: int, peers: int) -> float:
    """Far from the mean of all, whoever it is."""
    return (1.0 if index % 2 else -1.0) * (1.0 + index / peers)


def mean_shift(peers: int) -> float:
    """What the mean of all has beside the noise."""
    return sum(shift_of(index, peers) for index in range(peers)) / peers


def noise(elements: int, seed: int) -> Iterator[Vector]:
    """Part by part."""
    for number, first in enumerate(range(0, elements, PART)):
        drawn = np.random.default_rng((seed, number)).standard_normal(min(PART, elements - first), dtype=np.float32)
        yield np.float32(SPREAD) * drawn


def fill(vectors: Sequence[Vector], seed: int, shift: float) -> None:
    """Write noise and shift into all of them, each with noise of its own."""
    for number, vector in enumerate(vectors):
        for index, part in enumerate(noise(vector.size, seed + number)):
            vector[index * PART : index * PART + part.size] = part + np.float32(shift)


def right_part(vectors: Sequence[Vector], seed: int, shift: float) -> float:
    """The part of all values that are the noise and this shift, 0 to 1."""
    right = 0
    for number, vector in enumerate(vectors):
        for index, part in enumerate(noise(vector.size, seed + number)):
            beside = vector[index * PART : index * PART + part.size] - part
            right += int(np.count_nonzero(np.abs(beside - np.float32(shift)) < TOLERANCE))
    return right / sum(vector.size for vector in vectors)
