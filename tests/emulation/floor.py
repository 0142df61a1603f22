"""The least possible time of averaging, by a linear program over shares that knows only rates and bytes.

The program is written independently of the planner, because plans are compared with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tests.emulation.setups import Rates, Setup


@dataclass(frozen=True)
class Limit:
    """One direction of a link: its rate, the bytes that it always carries, and the bytes in proportion to each peer's
    share.
    """

    bytes_per_s: float
    always: float
    by_share: Mapping[int, float]


def floor_s(setup: Setup, rates: Rates, wire_bytes_up: int | Mapping[str, int], wire_bytes_down: int) -> float:
    """Return the seconds from the first byte of a gradient to the last byte of an average.

    `wire_bytes_up`: bytes of each contributor's encoded vector, as one number or by name. `wire_bytes_down`: bytes of
    the average. Contributors are all trainers, or those named in `wire_bytes_up`. One peer reduces each element, and
    all contributors can dial that peer. The contributors and the keeper of the log receive the average. Nothing is
    forwarded. Raise RuntimeError if no peer can be dialled.
    """
    from scipy.optimize import linprog  # loading scipy takes as long as starting a set-up

    count = len(setup.peers)
    limits = list(limits_of(setup, rates, wire_bytes_up, wire_bytes_down))
    # Variables: each peer's share in order, then the time. Rows are in seconds, so that their values have similar size.
    rows = np.zeros((len(limits), count + 1))
    rows[:, -1] = -1.0
    for row, limit in zip(rows, limits, strict=True):
        for index, size in limit.by_share.items():
            row[index] = size / limit.bytes_per_s
    solved = linprog(
        c=[0.0] * count + [1.0],
        A_ub=rows,
        b_ub=[-limit.always / limit.bytes_per_s for limit in limits],
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0 if peer.reachable else 0.0) for peer in setup.peers] + [(0.0, None)],
        method="highs",
    )
    if not solved.success:
        raise RuntimeError(f"{setup.name}: {solved.message}")
    return float(solved.x[-1])


def limits_of(setup: Setup, rates: Rates, wire_bytes_up: int | Mapping[str, int], down: int) -> Iterator[Limit]:
    trainers = [peer.name for peer in setup.peers if peer.role == "trainer"]
    up = wire_bytes_up if isinstance(wire_bytes_up, Mapping) else dict.fromkeys(trainers, wire_bytes_up)
    receivers = {*up, setup.keeper}
    for index, peer in enumerate(setup.peers):
        own, taken = up.get(peer.name, 0), down if peer.name in receivers else 0
        given = down * len(receivers - {peer.name})
        yield Limit(rates.up[peer.name], own, {index: given - own})
        yield Limit(rates.down[peer.name], taken, {index: sum(up.values()) - own - taken})
    indexes = {peer.name: index for index, peer in enumerate(setup.peers)}
    for (one, other), rate in rates.pairs.items():
        sizes = {indexes[one]: down if other in receivers else 0, indexes[other]: up.get(one, 0)}
        yield Limit(rate, 0, sizes)
