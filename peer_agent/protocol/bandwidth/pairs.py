"""Limits between two peers that neither peer's own link explains, such as a bad route between regions (rule 26).

A delayed flow reveals a limit if both of its directions had room and other flows through them were on time. The limit
counts only once the pair's next use confirms it, because a briefly busy machine looks the same. After an on-time
delivery, the next plan assumes slightly more speed, so that a wrong limit does not last. Limits that have not been
measured for a long time are forgotten.
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

ROOM = 0.7  # fraction of the estimate above which a direction may itself have delayed the flow
FREE = 0.25  # a direction may have had room if at least this fraction of its bytes was on time
ROUNDS_KEPT = 100  # pairs are forgotten after this many rounds without a measurement
HOPE = 1.1  # the next plan assumes this many times the speed of a pair that was on time
MOST_PAIRS = 2048  # maximum number of pairs remembered; those measured longest ago are forgotten first


def narrow_flows(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], held_up: AbstractSet[Flow]
) -> set[Flow]:
    """Return the delayed flows that neither end's link explains. O(flows log flows).

    Return an empty set if no flow is delayed, or if any flow has no planned pace.
    """
    if not held_up or not all(flow.asked_s for load in loads.values() for flow in load.flows):
        return set()
    free = {direction for direction, load in loads.items() if load.part_of(held_up) <= 1 - FREE}
    crowded = {flow for direction in free for flow in _crowded(capacities.get(direction), loads[direction])}
    return {flow for flow in held_up - crowded if free.issuperset(directions_of(flow))}


def _crowded(known: Capacity | None, load: Load) -> list[Flow]:
    """Return the flows during which the direction was nearly full. The full link may be the cause of their delay."""
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
    """Update the limits of pairs. `narrow`: the flows in `late` that neither end's link explains. O(flows)."""
    full = {(flow.sender, flow.receiver) for flow in narrow}
    for pair, load in _loads_of_pairs(loads, full | pairs.keys()).items():
        known = pairs.pop(pair, None)
        if known is not None and is_in_time(known, load, late):
            known.is_floor = True
        if (found := _measured(known, load, is_full=pair in full, at=at)) is not None:
            pairs[pair] = found
    _forget_old(pairs, at)


def _measured(known: Capacity | None, load: Load, *, is_full: bool, at: float) -> Capacity | None:
    """Return the new estimate for a pair, or None if there is nothing to remember.

    That is so if the pair was never limited, or if its next use did not confirm the limit.
    """
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
    """Return the confirmed limits of pairs, in bytes per second.

    `hopes`: True to raise those limits that may be too low.
    """
    return {
        pair: known.bps * (HOPE if hopes and known.is_floor else 1.0) for pair, known in pairs.items() if known.is_tried
    }


def _loads_of_pairs(loads: Mapping[Direction, Load], wanted: AbstractSet[Pair]) -> dict[Pair, Load]:
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
