"""The linear program that DeDLOC published (section 3.2), used as a lower bound for our plans.

a_ij is the share of its gradient that peer i sends to peer j. g_ij is the share of the averages that peer j gets from
peer i. Since g_ij may depend on j, two peers may average the same element with different results. Our plans must not
do that (rule 25).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from peer_agent.protocol.plan.parties import NO_LIMITS, Limits, Party, Table
from peer_agent.protocol.plan.solve import solve

MOST = 64  # peers; this needs some 8,000 variables, as many rows, and several seconds

Name = tuple[str | int, ...]
TIME: Name = ("T",)


class Flow(NamedTuple):
    """A flow between two peers, identified by their numbers. The flow is a variable of the linear program, in units of
    `size` bytes.
    """

    name: Name
    ends: tuple[int, int]
    size: float
    is_awaited: bool


class _Builder:
    """Variables of a linear program and its rows `sum(coefficient * variable) <= bound`, collected one by one."""

    def __init__(self) -> None:
        self.variables: dict[Name, int] = {TIME: 0}
        self.entries: list[tuple[int, int, float]] = []
        self.bounds: list[float] = []

    def row(self, terms: Iterable[tuple[Name, float]], bound: float = 0.0) -> None:
        for name, coefficient in terms:
            variable = self.variables.setdefault(name, len(self.variables))
            self.entries.append((len(self.bounds), variable, coefficient))
        self.bounds.append(bound)

    def link(self, flows: Sequence[Flow], capacity: float) -> None:
        if flows and math.isfinite(capacity):
            self.row([*((flow.name, flow.size / capacity) for flow in flows), (TIME, -1.0)])

    def least_time(self) -> float | None:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        rows, columns, values = zip(*self.entries, strict=True)
        cost = np.zeros(len(self.variables))
        cost[self.variables[TIME]] = 1.0
        matrix = csr_array((values, (rows, columns)), shape=(len(self.bounds), len(cost)))
        answer = linprog(cost, A_ub=matrix, b_ub=self.bounds, method="highs-ipm")
        return float(answer.fun) if answer.status == 0 else None


def published_bound(parties: Sequence[Party], down_bytes: float, limits: Limits = NO_LIMITS) -> float:
    """Return the published program's lower bound on a round's seconds. The program ignores households, duplex limits
    and forwarders.

    Return 0 if the HiGHS solver finds no solution. Raise ValueError as `solve` does, and for more than 64 peers.
    """
    if len(parties) > MOST:
        raise ValueError(f"more than {MOST} take part")
    unit_s = solve(parties, down_bytes, limits).duration_s
    if not unit_s:
        return 0.0
    table, builder = Table(parties), _Builder()
    _average(builder, table)
    flows = list(_flows(table, down_bytes))
    for number, (upload, download) in enumerate(zip(table.upload, table.download, strict=True)):
        builder.link([flow for flow in flows if flow.ends[0] == number], upload * unit_s)
        builder.link([flow for flow in flows if flow.ends[1] == number and flow.is_awaited], download * unit_s)
    for (sender, receiver), capacity in limits.pairs.items():
        ends = table.place.get(sender), table.place.get(receiver)
        if capacity > 0 and (sender, receiver) not in limits.forwarded:
            builder.link([flow for flow in flows if flow.ends == ends and flow.is_awaited], capacity * unit_s)
    return (builder.least_time() or 0.0) * unit_s


def _flows(table: Table, down_bytes: float) -> Iterator[Flow]:
    everybody = range(len(table.peers))
    for reducer in (i for i in everybody if table.reduces[i]):
        for other in (i for i in everybody if i != reducer):
            if table.up_bytes[other]:
                yield Flow(("a", other, reducer), (other, reducer), float(table.up_bytes[other]), is_awaited=True)
            if table.receives[other]:
                yield Flow(("g", reducer, other), (reducer, other), down_bytes, is_awaited=bool(table.waits[other]))


def _average(builder: _Builder, table: Table) -> None:
    """Limit each reducer's output to what every contributor has sent to it, and give every receiver the whole vector.

    The variable m is the share that a reducer has received from all contributors. With m, the program has n squared
    rows instead of n cubed.
    """
    reducers, receivers = np.flatnonzero(table.reduces).tolist(), np.flatnonzero(table.receives).tolist()
    for i in reducers:
        for k in np.flatnonzero(table.up_bytes).tolist():
            if k != i:
                builder.row([(("m", i), 1.0), (("a", k, i), -1.0)])
        for j in receivers:
            builder.row([(("g", i, j), 1.0), (("m", i), -1.0)])
    for j in receivers:
        builder.row([(("g", i, j), -1.0) for i in reducers], -1.0)
