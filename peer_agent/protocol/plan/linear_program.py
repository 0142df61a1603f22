"""Solve the share program with HiGHS if some row contains several shares (rule 26).

Such rows couple shares. They belong to pairs of peers, households and forwarding relays. Often many solutions are
optimal, and HiGHS returns only one corner of them, which may assign all the averaging to one peer. A second step
therefore finds the optimal shares closest to the shares that rule 29 would give without the coupling. It minimizes the
largest excess over those shares, relative to each reducer's largest possible share. It then fixes the shares that
cannot be reduced further, and repeats this for the others (lexicographic min-max, a unique point).
"""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.plan.closed_form import Lines, fill
from peer_agent.protocol.plan.parties import Vector, total
from peer_agent.protocol.plan.program import Program

SLACK = 1e-8  # relative tolerance for times, so that rounding errors do not exclude optimal shares
MOST_ITERATIONS = 100_000  # most HiGHS iterations per solution
MOST_LEVELS = 8  # most programs solved to spread the excess
HOLDS = 1e-7  # a row with a smaller multiplier does not bind
DIGITS = 10  # digits kept of a share; later ones differ between builds of HiGHS


class Scaled(Struct, frozen=True, eq=False):
    """The rows that can limit the time, scaled: `matrix @ shares + base <= time`. `time` is in units of `scale_s`."""

    rows: NDArray[np.int64]
    matrix: Any  # scipy's, sparse
    base: Vector
    scale_s: float


def coupled_shares(program: Program, lines: Lines, least_s: float) -> tuple[Vector, Vector]:
    """Return the optimal shares, and how much each row limits the time, as fractions that sum to 1.

    `least_s`: the least time if the rows that couple shares are ignored. If HiGHS gives up, return rule 29's shares for
    that time, and zeros. These shares are feasible, but the round takes longer.
    """
    parts = np.zeros(len(program.base))
    aim = _aim(program, lines, least_s)
    scaled = scaled_rows(program, least_s or program.duration_s(aim))
    answer = _minimise(scaled.matrix, -np.ones(len(scaled.rows)), -scaled.base, np.full(len(aim), np.nan))
    if answer is None:
        return aim, parts
    parts[scaled.rows] = np.maximum(-answer.ineqlin.marginals, 0.0)
    time = float(answer.x[-1]) * (1 + SLACK)
    aim = _aim(program, lines, time * scaled.scale_s)
    reach = np.minimum(lines.upper(time * scaled.scale_s), 1.0)
    shares = _level(scaled, time, aim, reach, np.asarray(answer.x[:-1]))
    rounded = np.array([round(share, DIGITS) for share in np.maximum(shares, 0.0).tolist()])
    return rounded / total(rounded), parts


def scaled_rows(program: Program, scale_s: float) -> Scaled:
    """Return the rows that take longer than `scale_s` for some shares, scaled as in `Scaled`."""
    from scipy.sparse import csr_array

    most = np.zeros(len(program.base))
    np.maximum.at(most, program.row, program.slope)
    allowance = program.capacity * scale_s
    rows = np.flatnonzero(program.base + most > allowance * (1 - SLACK))
    number = np.full(len(program.base), -1)
    number[rows] = np.arange(len(rows))
    kept = number[program.row] >= 0
    places = (number[program.row[kept]], program.share[kept])
    values = program.slope[kept] / allowance[program.row[kept]]
    matrix = csr_array((values, places), shape=(len(rows), len(program.reducers)))
    return Scaled(rows, matrix, program.base[rows] / allowance[rows], scale_s)


def _aim(program: Program, lines: Lines, time_s: float) -> Vector:
    """Return the shares that rule 29 gives for this time if the rows that couple shares are ignored."""
    return fill(lines.lower(time_s), lines.upper(time_s), program.is_volunteer)


def _level(scaled: Scaled, time: float, aim: Vector, reach: Vector, shares: Vector) -> Vector:
    """Return shares that take at most `time` and exceed `aim` as little as possible, relative to `reach`.

    The largest excess is minimized first, then the next largest, and so on (lexicographic min-max). If HiGHS gives up,
    return the last shares found, which are `shares` at first.
    """
    from scipy.sparse import csr_array, vstack

    settled = np.where(reach > 0, np.nan, 0.0)
    for _ in range(MOST_LEVELS):
        free = np.flatnonzero(np.isnan(settled))
        if not len(free):
            break
        places = (np.arange(len(free)), free)
        own = csr_array((np.ones(len(free)), places), shape=(len(free), len(aim)))
        column = np.concatenate([np.zeros(len(scaled.rows)), -reach[free]])
        bound = np.concatenate([time - scaled.base, aim[free]])
        answer = _minimise(vstack([scaled.matrix, own]), column, bound, settled)
        if answer is None:
            break
        shares = np.asarray(answer.x[:-1])
        holds = free[answer.ineqlin.marginals[len(scaled.rows) :] < -HOLDS]
        settled[holds] = shares[holds]
    return shares


def _minimise(matrix: Any, column: Vector, bound: Vector, settled: Vector) -> Any:
    """Minimize z such that `matrix @ shares + column * z <= bound` and the shares sum to 1.

    Return SciPy's result, or None if HiGHS gave up. `settled`: the shares that are already fixed, and NaN for others.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack

    is_open = np.isnan(settled)
    lowest = np.append(np.where(is_open, 0.0, settled), -np.inf)
    highest = np.append(np.where(is_open, np.inf, settled), np.inf)
    answer = linprog(
        np.append(np.zeros(len(settled)), 1.0),
        A_ub=hstack([matrix, csr_array(column[:, None])]),
        b_ub=bound,
        A_eq=np.append(np.ones(len(settled)), 0.0)[None],
        b_eq=[1.0],
        bounds=np.column_stack([lowest, highest]),
        method="highs",
        options={"maxiter": MOST_ITERATIONS},
    )
    return answer if answer.status == 0 else None
