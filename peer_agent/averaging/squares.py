"""Sums of squares, to the same last bit on every machine: leaves are hashed."""

import numpy as np
from numpy.typing import NDArray

from peer_agent.averaging.scratch import SCRATCH

Squares = NDArray[np.float64]
Level = tuple[Squares, Squares]


def sums_of_squares(rows: NDArray[np.float32]) -> list[float]:
    """The sum of each row of [chunks, n] in float64; inf or nan where a value is not finite.

    A halving tree of plain additions. Squares of float32 are exact in float64, so only the additions round.
    """
    count, length = rows.shape
    if not length:
        return [0.0] * count
    add = np.add  # looked up once and without a keyword: short rows are mostly calls
    squares, levels = SCRATCH.once(("squares", count, length), lambda: _tree(count, length))
    np.copyto(squares, rows)
    np.multiply(squares, squares, out=squares)
    for low, high in levels:
        add(low, high, low)
    sums: list[float] = squares[:, 0].tolist()
    return sums


def _tree(count: int, length: int) -> tuple[Squares, list[Level]]:
    """Room for the squares, and of each level what is added to what: the first half, and the last."""
    squares = SCRATCH.room("squares", np.float64, count * length).reshape(count, length)
    levels = []
    while length > 1:
        half = length // 2
        levels.append((squares[:, :half], squares[:, length - half : length]))
        length -= half
    return squares, levels
