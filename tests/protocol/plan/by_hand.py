"""The rows of rule 26, computed independently of the planner from all the transfers to a single reducer.

Loads are linear in the shares, which sum to 1. A link's load is therefore the mean of these loads, weighted by share.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import linprog

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import NO_LIMITS, Limits, Party

Link = tuple[str, object]  # what is limited: ("up", a peer), ("pair", a pair) …


def transfers(parties: Sequence[Party], down: float, reducer: PeerId) -> Iterator[tuple[PeerId, PeerId, float, bool]]:
    """Yield sender, receiver, bytes, and whether the round waits for the receiver."""
    for party in parties:
        if party.peer != reducer:
            yield party.peer, reducer, party.up_bytes, True
            if party.receives:
                yield reducer, party.peer, down, party.is_awaited


def loads(parties: Sequence[Party], down: float, limits: Limits, reducer: PeerId) -> dict[Link, float]:
    home = {party.peer: party.household for party in parties}
    carried: defaultdict[Link, float] = defaultdict(float)

    def hop(sender: PeerId | None, receiver: PeerId | None, size: float) -> None:
        for kind, end in (("up", sender), ("down", receiver)):
            if end is not None:
                carried[kind, end] += size
                carried["duplex", end] += size
        if sender is not None:
            carried["household", home[sender]] += size

    for sender, receiver, size, is_awaited in transfers(parties, down, reducer):
        hop(sender, receiver if is_awaited else None, size)
        relay = limits.forwarded.get((sender, receiver))
        if relay is None:
            carried["pair", (sender, receiver)] += size if is_awaited else 0.0
        elif relay not in (sender, receiver) and is_awaited:
            hop(relay, relay, size)
    return carried


def capacities(parties: Sequence[Party], limits: Limits) -> dict[Link, float]:
    """Return the links' capacities. An unmeasured link counts as the slowest of its kind."""
    known: dict[Link, float] = {("pair", pair): bps for pair, bps in limits.pairs.items()}
    known |= {("household", name): bps for name, bps in limits.households.items() if name}
    for party in parties:
        alike = [other for other in parties if other.is_volunteer == party.is_volunteer]
        known["duplex", party.peer] = party.duplex_bps
        known["up", party.peer] = party.upload_bps or min((o.upload_bps for o in alike if o.upload_bps), default=0)
        known["down", party.peer] = party.download_bps or min(
            (o.download_bps for o in alike if o.download_bps), default=0
        )
    return {link: bps for link, bps in known.items() if bps}


def seconds(parties: Sequence[Party], down: float, limits: Limits = NO_LIMITS) -> tuple[list[PeerId], np.ndarray]:
    """Return the possible reducers in order of id, and a table of seconds with one row per limit. Each column assumes
    that one reducer takes everything.
    """
    reducers = sorted(party.peer for party in parties if party.may_reduce)
    capacity = capacities(parties, limits)
    table = np.zeros((len(capacity), len(reducers)))
    for column, reducer in enumerate(reducers):
        carried = loads(parties, down, limits, reducer)
        table[:, column] = [carried.get(link, 0.0) / bps for link, bps in capacity.items()]
    return reducers, table


def least(table: np.ndarray) -> float:
    """Return T*, computed by HiGHS: the least T for which shares that sum to 1 keep every row at or below T."""
    count = table.shape[1]
    # the time if the best reducer takes everything: an upper bound of T*
    scale = float(table.max(axis=0, initial=0.0).min())
    if not scale:
        return 0.0
    answer = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=np.column_stack([table / scale, np.full(len(table), -1.0)]),
        b_ub=np.zeros(len(table)),
        A_eq=np.append(np.ones(count), 0.0)[None],
        b_eq=[1.0],
        method="highs",
    )
    assert answer.status == 0, answer.message
    return float(answer.x[-1]) * scale
