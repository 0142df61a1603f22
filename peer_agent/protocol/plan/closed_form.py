"""Solve the share program if no row contains two shares (rule 28), and break ties among optimal shares (rule 29).

For a given time T, every row bounds one share, linearly in T. T* is the least T at which the lower bounds sum to at
most one vector and the upper bounds to at least one. Bisection finds the same T* on every machine, because it performs
single operations in a fixed order. The arrays' leading dimensions index programs with the same rows.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.plan.parties import Flags, Vector, total
from peer_agent.protocol.plan.program import Program

STEPS = 60  # bisection steps; the bounds differ by a factor below the number of reducers
FILL = 0.9  # relays and auxiliaries get this fraction of their upper bounds before trainers get anything


class Lines(Struct, frozen=True, eq=False):
    """Bounds on shares: `share <= gain * T - offset` (upper) or `>=` (lower). The bounds on one share are adjacent."""

    starts: NDArray[np.int64]  # index of each share's first bound, which is a dummy
    gain: Vector  # shape (..., bounds), like `offset` and `is_below`
    offset: Vector
    is_below: Flags
    least_s: Vector  # shape (...): in less time than this, no shares satisfy all rows
    most_s: Vector  # shape (...): time in which one reducer could average the whole vector

    def upper(self, time_s: Vector | float) -> Vector:
        """Return each reducer's largest possible share in this time. A value above 1 exceeds the whole vector."""
        bound = np.where(self.is_below, np.inf, np.asarray(time_s)[..., None] * self.gain - self.offset)
        return np.asarray(np.minimum.reduceat(bound, self.starts, axis=-1))

    def lower(self, time_s: Vector | float) -> Vector:
        """Return each reducer's smallest possible share. A slow link carries less data if its peer reduces more."""
        bound = np.where(self.is_below, np.asarray(time_s)[..., None] * self.gain - self.offset, 0.0)
        return np.asarray(np.maximum.reduceat(bound, self.starts, axis=-1))


def lines_of(program: Program) -> Lines:
    """Return the bounds given by the program's rows. Skip rows that contain several shares."""
    entries = np.bincount(program.row, minlength=len(program.base))
    alone = entries[program.row] == 1
    row, share, slope = program.row[alone], program.share[alone], program.slope[alone]
    order = np.argsort(share, kind="stable")
    row, share, slope = row[order], share[order], slope[order]
    free = entries == 0
    least_s = (program.base[free] / program.capacity[free]).max(initial=0.0)
    shares = len(program.reducers)
    first = np.searchsorted(share, np.arange(shares))
    # Each share begins with a dummy bound, so that every share has one.
    base, slopes = (np.insert(values, first, 0.0) for values in (program.base[row], slope))
    capacity = np.insert(program.capacity[row], first, np.inf)
    return lines(first + np.arange(shares), base, slopes, capacity, least_s)


def lines(starts: NDArray[np.int64], base: Vector, slope: Vector, capacity: Vector, least_s: Vector | float) -> Lines:
    """Make bounds from rows `base + slope * share <= capacity * T`, sorted by share. Capacity may be infinite."""
    binds = (slope != 0) & np.isfinite(capacity)
    divisor = np.where(binds, slope, 1.0)
    empty, full = base / capacity, np.maximum(base + slope, 0.0) / capacity
    floor = np.where(slope >= 0, empty, full).max(axis=-1, initial=0.0)
    alone = np.maximum.reduceat(full, starts, axis=-1)
    return Lines(
        starts,
        np.where(binds, capacity, 0.0) / divisor,
        np.where(binds, base / divisor, -np.inf),
        binds & (slope < 0),
        np.maximum(floor, least_s),
        np.maximum(np.maximum(alone.min(axis=-1), empty.max(axis=-1)), least_s),
    )


def least_time(lines: Lines) -> Vector:
    """Return T*, of shape (...). It is `least_s` if the whole vector fits into that time."""
    low, high = lines.least_s, lines.most_s
    is_least = _fits(lines, low)
    if is_least.all():
        return low
    for _ in range(STEPS):
        middle = (low + high) / 2
        fits = _fits(lines, middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return np.where(is_least, lines.least_s, high)


def _fits(lines: Lines, time_s: Vector) -> NDArray[np.bool_]:
    upper = np.clip(lines.upper(time_s), 0.0, 1.0)
    enough = total(upper) >= 1.0
    if not lines.is_below.any():
        return np.asarray(enough)
    lower = lines.lower(time_s)
    return np.asarray(enough & (total(lower) <= 1.0) & (lower <= upper).all(axis=-1))


def fill(lower: Vector, upper: Vector, is_volunteer: Flags) -> Vector:
    """Return shares between the bounds. Relays and auxiliaries are first given 90 % of their upper bounds (rule 29).

    Bounds may exceed the whole vector, so that the faster of several unsaturated reducers gets more. Reducers without
    an upper bound come first.
    """
    shares = lower + _deal(1.0 - total(lower), np.where(is_volunteer, 0.0, np.maximum(FILL * upper - lower, 0.0)))
    shares = shares + _deal(1.0 - total(shares), np.maximum(upper - shares, 0.0))
    return np.asarray(shares / total(shares))


def _deal(left: Vector, room: Vector) -> Vector:
    """Distribute the fraction `left` in proportion to `room`, giving no reducer more than its `room`."""
    if np.isinf(room).any():
        room = np.isinf(room).astype(np.float64)
        return room * (np.maximum(left, 0.0) / total(room))
    whole = total(room)
    return room * (np.clip(left, 0.0, whole) / whole) if whole > 0 else np.zeros_like(room)
