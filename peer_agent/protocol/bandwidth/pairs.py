"""Limits between two peers that are none of their own links': two regions, a bad route (rule 26).

A flow that was held up while both its directions are thought to have room, and while other flows of both came in time,
was so by what lies between its ends. What went from one to the other in that attempt is then all that the pair carries.
One that is not measured for long is forgotten, and found anew where it still holds something up.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from peer_agent.protocol.bandwidth.flows import (
    MOST_RISE,
    WEIGHT,
    Capacity,
    Direction,
    Flow,
    Load,
    directions_of,
    has_room,
)
from peer_agent.protocol.plan import Pair

FREE = 0.25  # of a direction's bytes, at least, that were not held up in it
ROUNDS_KEPT = 100  # that a pair is remembered without a measurement
MOST_PAIRS = 2048  # that are known; those measured longest ago are forgotten first


def narrow_flows(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], held_up: AbstractSet[Flow]
) -> set[Flow]:
    """Those that neither of their directions held up. O(flows)."""
    free = {direction for direction, load in loads.items() if load.part_of(held_up) <= 1 - FREE}
    return {flow for flow in held_up if has_room(capacities, loads, flow) and free.issuperset(directions_of(flow))}


def learn_pairs(
    pairs: dict[Pair, Capacity], loads: Mapping[Direction, Load], narrow: AbstractSet[Flow], at: float
) -> None:
    """Take what went between two, both kinds of bytes together, into what is known of them. O(flows)."""
    full = {(flow.sender, flow.receiver) for flow in narrow}
    for pair, load in _loads_of_pairs(loads, full | pairs.keys()).items():
        known = pairs.pop(pair, None)
        if known is not None and load.bps >= known.bps:
            pairs[pair] = Capacity(min(load.bps, MOST_RISE * known.bps), is_floor=pair not in full, measured_at=at)
        elif pair in full:
            bps = load.bps if known is None else known.bps + WEIGHT * (load.bps - known.bps)
            pairs[pair] = Capacity(bps, is_floor=False, measured_at=at)
        elif known is not None:
            pairs[pair] = known
    _forget_old(pairs, at)


def _loads_of_pairs(loads: Mapping[Direction, Load], wanted: AbstractSet[Pair]) -> dict[Pair, Load]:
    """What went over each of these."""
    of_pairs: dict[Pair, Load] = {}
    for (_, way), load in loads.items():
        for flow in load.flows if way == "up" else ():
            if (pair := (flow.sender, flow.receiver)) in wanted:
                of_pairs.setdefault(pair, Load()).add(flow)
    return of_pairs


def _forget_old(pairs: dict[Pair, Capacity], at: float) -> None:
    for pair in [pair for pair, known in pairs.items() if at - known.measured_at >= ROUNDS_KEPT]:
        del pairs[pair]
    oldest = sorted(pairs, key=lambda pair: pairs[pair].measured_at)
    for pair in oldest[: max(0, len(pairs) - MOST_PAIRS)]:
        del pairs[pair]
