"""Flows over links with given capacities. Flows share a link as TCP connections do: max-min fairly, without taking
turns.
"""

from collections.abc import Collection, Mapping

from peer_agent.protocol.bandwidth.flows import Direction, Flow
from peer_agent.protocol.identifiers import PeerId

Pair = tuple[PeerId, PeerId]


def flows_over(
    true_bps: Mapping[Direction, float],
    wanted: Mapping[Pair, int],
    between: Mapping[Pair, float] | None = None,
    *,
    in_step: bool = False,
) -> list[Flow]:
    """Return the flows of all pairs, which start together. When a flow ends, the remaining flows share its capacity.

    `in_step`: rates are proportional to sizes, as with a sender that advances all its flows together.
    """
    left = {pair: float(size) for pair, size in wanted.items() if size}
    ended: dict[Pair, float] = {}
    now = 0.0
    while left:
        rates = fair_rates(true_bps, wanted if in_step else dict.fromkeys(left, 1), left, between or {})
        step = min(size / rates[pair] for pair, size in left.items())
        now += step
        left = {pair: size - rates[pair] * step for pair, size in left.items()}
        for pair in [pair for pair, size in left.items() if size <= 1e-6 * wanted[pair]]:
            del left[pair]
            ended[pair] = now
    return [Flow(*pair, wanted[pair], 0.0, ended[pair]) for pair in ended]


def fair_rates(
    true_bps: Mapping[Direction, float],
    weights: Mapping[Pair, int],
    pairs: Collection[Pair],
    between: Mapping[Pair, float],
) -> dict[Pair, float]:
    """Return weighted max-min fair rates, filling the link with the least capacity per unit of weight first."""
    rates: dict[Pair, float] = {}
    room = dict[tuple[str, str], float]([*true_bps.items(), *between.items()])
    open_ = set(pairs)
    while open_:
        users: dict[tuple[str, str], list[Pair]] = {}
        for pair in open_:
            for direction in ((pair[0], "up"), (pair[1], "down"), pair):
                if direction in room:
                    users.setdefault(direction, []).append(pair)
        shares = {each: room[each] / sum(weights[pair] for pair in pairs_) for each, pairs_ in users.items()}
        tightest = min(users, key=lambda each: (shares[each], each))
        for pair in users[tightest]:
            rates[pair] = shares[tightest] * weights[pair]
            open_.discard(pair)
            room[pair[0], "up"] -= rates[pair]
            room[pair[1], "down"] -= rates[pair]
    return rates
