"""Limits between two peers that are none of their own links': two regions, a bad route (rule 26).

A flow that was held up while both its directions, as long as it lasted, had room by what is known, and while other
flows of both came in time, was so by what lies between its ends. What went from one to the other in that attempt is
then all that the pair carries. It counts once it was found a second time, the next time that something goes there: a
machine that was busy for a moment looks the same. Where all that fits came in time, the next shares are dealt as if a
bit more did: what was found in a bad moment would else limit what goes there for ever. One that is not measured for
long is forgotten, and found anew where it still holds something up.
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
    is_in_time,
)
from peer_agent.protocol.plan import Pair

ROOM = 0.7  # of what is known of a direction: one that carried more may be what held a flow up
FREE = 0.25  # of a direction's bytes, at least, that were not held up in it
ROUNDS_KEPT = 100  # that a pair is remembered without a measurement
HOPE = 1.1  # times what came over a pair in time: shares are dealt by it
MOST_PAIRS = 2048  # that are known; those measured longest ago are forgotten first


def narrow_flows(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], held_up: AbstractSet[Flow]
) -> set[Flow]:
    """Those that neither of their directions held up; none where nobody was asked to keep a pace.

    O(flows log flows).
    """
    if not all(flow.asked_s for load in loads.values() for flow in load.flows):
        return set()
    free = {direction for direction, load in loads.items() if load.part_of(held_up) <= 1 - FREE}
    crowded = {flow for direction in free for flow in _crowded(capacities.get(direction), loads[direction])}
    return {flow for flow in held_up - crowded if free.issuperset(directions_of(flow))}


def _crowded(known: Capacity | None, load: Load) -> list[Flow]:
    """Flows during which their direction had no room: what is over soon may have been held up by that."""
    if known is None or not known.bps:
        return load.flows
    uses = load.bps_during(load.flows) / known.bps
    return [flow for flow, used in zip(load.flows, uses, strict=True) if used >= ROOM]


def learn_pairs(
    pairs: dict[Pair, Capacity],
    loads: Mapping[Direction, Load],
    late: AbstractSet[Flow],
    narrow: AbstractSet[Flow],
    at: float,
) -> None:
    """Take what went between two, both kinds of bytes together, into what is known of them. O(flows).

    `late`: all that was held up, `narrow`: what neither of its directions held up.
    """
    full = {(flow.sender, flow.receiver) for flow in narrow}
    for pair, load in _loads_of_pairs(loads, full | pairs.keys()).items():
        known = pairs.pop(pair, None)
        if known is not None and is_in_time(known, load, late):
            known.is_floor = True
        if (found := _measured(known, load, is_full=pair in full, at=at)) is not None:
            pairs[pair] = found
    _forget_old(pairs, at)


def _measured(known: Capacity | None, load: Load, *, is_full: bool, at: float) -> Capacity | None:
    """What is known after this; nothing where a first suspicion was wrong. `is_tried`: it was found twice."""
    if known is None:
        return Capacity(load.bps, is_floor=False, measured_at=at) if is_full else None
    is_tried = known.is_tried or is_full
    if not is_tried:
        return None
    if load.bps >= known.bps:
        return Capacity(min(load.bps, MOST_RISE * known.bps), not is_full, at, is_tried)
    if not is_full:
        return known
    return Capacity(known.bps + WEIGHT * (load.bps - known.bps), is_floor=False, measured_at=at, is_tried=True)


def limits_of(pairs: Mapping[Pair, Capacity], *, hopes: bool = False) -> dict[Pair, float]:
    """What a plan counts on: bytes per second, of those that were found twice. `hopes`: with more where it may be."""
    return {
        pair: known.bps * (HOPE if hopes and known.is_floor else 1.0) for pair, known in pairs.items() if known.is_tried
    }


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
