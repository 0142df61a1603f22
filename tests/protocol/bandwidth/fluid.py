"""Flows over links of given capacities, as TCP shares them: each gets what is fair, nobody waits for anybody."""

from collections.abc import Mapping

from peer_agent.protocol.bandwidth.flows import Direction, Flow
from peer_agent.protocol.identifiers import PeerId

Pair = tuple[PeerId, PeerId]


def flows_over(
    true_bps: Mapping[Direction, float], wanted: Mapping[Pair, int], between: Mapping[Pair, float] | None = None
) -> list[Flow]:
    """Each pair's bytes, from the first moment on; when a flow ends, the others share what it leaves."""
    left = {pair: float(size) for pair, size in wanted.items() if size}
    ended: dict[Pair, float] = {}
    now = 0.0
    while left:
        rates = fair_rates(true_bps, left, between or {})
        step = min(size / rates[pair] for pair, size in left.items())
        now += step
        left = {pair: size - rates[pair] * step for pair, size in left.items()}
        for pair in [pair for pair, size in left.items() if size <= 1e-6 * wanted[pair]]:
            del left[pair]
            ended[pair] = now
    return [Flow(*pair, wanted[pair], 0.0, ended[pair]) for pair in ended]


def fair_rates(
    true_bps: Mapping[Direction, float], pairs: Mapping[Pair, float], between: Mapping[Pair, float]
) -> dict[Pair, float]:
    """Max-min fair: what has the least for each of its flows is shared out first, then the next."""
    rates: dict[Pair, float] = {}
    room = dict[tuple[str, str], float]([*true_bps.items(), *between.items()])
    open_ = set(pairs)
    while open_:
        users: dict[tuple[str, str], list[Pair]] = {}
        for pair in open_:
            for direction in ((pair[0], "up"), (pair[1], "down"), pair):
                if direction in room:
                    users.setdefault(direction, []).append(pair)
        tightest = min(users, key=lambda each: (room[each] / len(users[each]), each))
        share = room[tightest] / len(users[tightest])
        for pair in users[tightest]:
            rates[pair] = share
            open_.discard(pair)
            room[pair[0], "up"] -= share
            room[pair[1], "down"] -= share
    return rates
