"""Estimate the bandwidth of each peer's uplink and downlink from a round's flows (rule 31).

A flow is the bytes that one peer received from another in one attempt. The plan determines its size; the receiver
reports when its first and last bytes arrived. A flow that is on time only gives a lower bound for its two directions. A
direction was full if delayed flows kept it busy to the end and it carried about as much as estimated; its estimate is
then corrected. If both directions of delayed flows seem to have room, one of them has become slower, presumably the one
that carried most of the delayed bytes. Nothing else lowers an estimate, because a peer with little work never shows its
full speed. Limits between pairs are determined first.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from peer_agent.protocol.bandwidth.flows import (
    FASTER,
    FASTEST_BPS,
    FULL,
    IN_TIME,
    MOST_RISE,
    PAUSE_S,
    SHORTEST_S,
    STEADY,
    WAYS,
    WEIGHT,
    Capacity,
    Direction,
    Flow,
    Load,
    directions_of,
    has_room,
    loads_of,
    use,
)
from peer_agent.protocol.bandwidth.pairs import learn_pairs, limits_of, narrow_flows
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Pair

BUSY = 0.5  # above this fraction of its estimate, a direction had the chance to show that it is faster
MOST = 0.5  # anything above this fraction of the bytes counts as most of them
NEARLY_FULL = 0.7  # fraction of the estimate that a direction shared by bursts and steady flows can carry
HOPE = 2.0  # multiple of a lower bound that plans assume, so that rounds test for a faster link
HOPE_OF_REDUCERS = 4.0  # the same for peers that only reduce, measured mostly with slower peers


def learn(
    capacities: dict[Direction, Capacity],
    pairs: dict[Pair, Capacity],
    flows: Iterable[Flow],
    at: float,
    hoped_s: float = 0.0,
) -> None:
    """Update the estimates from one attempt's flows. O(flows).

    `hoped_s`: how many seconds all flows would take if links exceeded their lower bounds as the plan hopes.
    """
    flows = list(flows)
    loads = loads_of(flows)
    held_up = _held_up(capacities, loads, flows)
    narrow = narrow_flows(capacities, loads, held_up)
    # The plan did not know these pairs' limits, so their senders kept all their flows level with the limited ones.
    waiting = {flow.sender for flow in narrow if (flow.sender, flow.receiver) not in limits_of(pairs)}
    learn_pairs(pairs, loads, held_up, narrow, at)
    held_up -= narrow
    slowing = _slowing(capacities, loads, held_up)
    for direction, load in loads.items():
        known = capacities.get(direction)
        if known is None:
            capacities[direction] = Capacity(min(load.bps, FASTEST_BPS), is_floor=True, measured_at=at)
            continue
        # A direction with mostly delayed bytes was full until the first of the delayed flows ended.
        was_full = load.is_steady or (load.part_of(held_up) > MOST and load.busy_bps < known.bps)
        is_slowing = direction in slowing and was_full
        was_suspected, known.is_suspected = known.is_suspected, is_slowing
        if load.is_of_averages and not was_suspected:
            is_slowing = False  # it may have been busy only briefly, and no plan would test a lower estimate
        is_full = load.is_steady and load.part_of(held_up) >= STEADY and load.bps >= FULL * known.bps
        is_end = is_full and load.is_asked and _others_have_room(capacities, loads, direction)
        if is_slowing or is_end:
            known.is_floor = False
        if is_full:
            # A direction that carried more than its estimate while the other ends were full may carry even more.
            known.is_tried = load.is_asked and (is_end or load.bps <= FASTER * known.bps)
        else:
            known.is_tried |= not _waited(loads, direction, waiting) and _is_in_vain(known, load, hoped_s)
            known.is_tried &= load.bps <= FASTER * known.bps
        if load.bps >= known.bps:
            _raise(known, load, at)
        elif is_slowing or is_full:
            bps = load.bps if load.is_steady else load.busy_bps
            known.bps += WEIGHT * (bps - known.bps)
            known.measured_at = at


def learn_probe(capacities: dict[Direction, Capacity], flow: Flow, at: float) -> None:
    """Use an idle link's measured speed as a lower bound for both directions.

    A probe never lowers an estimate. Its byte count is only one peer's claim, and the other end or the path may have
    been the bottleneck.
    """
    bps = min(flow.received / max(flow.last_s - flow.first_s, SHORTEST_S), FASTEST_BPS)
    for direction in directions_of(flow):
        known = capacities.get(direction)
        if known is None or bps > known.bps:
            capacities[direction] = Capacity(bps, is_floor=True, measured_at=at)


def _is_in_vain(known: Capacity, load: Load, hoped_s: float) -> bool:
    """Return True if the plan hoped for more speed than a direction had.

    The direction took longer than hoped, and was used enough for this to matter.
    """
    if not hoped_s or load.received <= known.bps * hoped_s or load.bps < BUSY * known.bps:
        return False
    return load.seconds > IN_TIME * hoped_s + PAUSE_S


def _waited(loads: Mapping[Direction, Load], direction: Direction, senders: AbstractSet[PeerId]) -> bool:
    """Return True if this is the uplink of one of `senders`, or if its peer received most of its bytes from them."""
    peer, way = direction
    if way == "up" and peer in senders:
        return True
    came = loads.get((peer, "down"))
    return came is not None and came.part_of({flow for flow in came.flows if flow.sender in senders}) > MOST


def _raise(known: Capacity, load: Load, at: float) -> None:
    known.bps = min(load.bps, MOST_RISE * known.bps, FASTEST_BPS)
    known.measured_at = at


def _held_up(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], flows: Iterable[Flow]
) -> set[Flow]:
    """Return the flows that a link delayed.

    Omit flows that their sender only slowed down to keep them level with another of its flows, into a full downlink.
    """
    slow = {flow for flow in flows if flow.is_held_up}
    full = {flow for flow in slow if flow.in_step and use(capacities, loads, (flow.receiver, "down")) >= FULL}
    waits_for: dict[PeerId, set[PeerId]] = defaultdict(set)
    for flow in full:
        waits_for[flow.sender].add(flow.receiver)
    return {
        flow
        for flow in slow
        if not flow.in_step
        or flow.full_s is not None
        or not waits_for[flow.sender] - {flow.receiver}
        or use(capacities, loads, (flow.sender, "up")) >= FULL
    }


def _slowing(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], held_up: AbstractSet[Flow]
) -> set[Direction]:
    """Return a small set of directions that explains why flows were slow although their directions seemed to have room.

    Choose the direction that carried most of the slow bytes, and repeat with the rest. Skip a direction if the other
    ends of its flows were nearly full, and fuller, because shared links lose some capacity. O(directions x flows).
    """
    slow = {flow for flow in held_up if has_room(capacities, loads, flow)}
    found: set[Direction] = set()
    while slow:
        size: dict[Direction, int] = defaultdict(int)
        for flow in slow:
            for direction in directions_of(flow):
                size[direction] += flow.received
        worst = max(size, key=lambda each: (size[each], use(capacities, loads, each), each))
        if not _others_are_fuller(capacities, loads, worst, slow):
            found.add(worst)
        slow = {flow for flow in slow if worst not in directions_of(flow)}
    return found


def _others_are_fuller(
    capacities: Mapping[Direction, Capacity],
    loads: Mapping[Direction, Load],
    direction: Direction,
    slow: AbstractSet[Flow],
) -> bool:
    """Return True if most of the slow bytes had another end that was nearly full, and fuller than this direction."""
    known = max(use(capacities, loads, direction), NEARLY_FULL)
    its = {flow: other for flow, other in _other_ends(loads[direction], direction) if flow in slow}
    fuller = sum(flow.received for flow, other in its.items() if use(capacities, loads, other) > known)
    return fuller > MOST * sum(flow.received for flow in its)


def _other_ends(load: Load, direction: Direction) -> Iterator[tuple[Flow, Direction]]:
    return ((flow, next(each for each in directions_of(flow) if each != direction)) for flow in load.flows)


def _others_have_room(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction
) -> bool:
    """Return True if most of the bytes had another end with room, which was therefore not the bottleneck."""
    load = loads[direction]
    free = sum(flow.received for flow, other in _other_ends(load, direction) if use(capacities, loads, other) < FULL)
    return free >= STEADY * load.received


def is_limit(known: Capacity | None) -> bool:
    """Return True if the estimate is a direction's real limit.

    A round has then reached that limit, or has asked for more speed without getting it.
    """
    return known is not None and (known.is_tried or not known.is_floor)


def hope_of(*, trains: bool) -> float:
    """Return the factor by which a plan assumes a peer's link to be faster than its lower bound.

    Peers that only reduce get a larger factor. Otherwise, no round would reveal that such a peer is faster than the
    trainers that it was measured with.
    """
    return HOPE if trains else HOPE_OF_REDUCERS


def budget_bps(
    capacities: Mapping[Direction, Capacity], direction: Direction, reserve: float = 0.0, *, hope: float = 1.0
) -> float:
    """Return the bytes per second that a plan may use, less the `reserve`, or 0 if there is no estimate.

    `hope`: the factor by which to raise an estimate that is only a lower bound.
    """
    known = capacities.get(direction)
    if known is None:
        return 0.0
    return known.bps * (1 - reserve) * (1.0 if is_limit(known) else hope)


def unknown(capacities: Mapping[Direction, Capacity], peers: Sequence[PeerId]) -> list[PeerId]:
    """Return the peers whose bandwidth is unknown, or known only as a lower bound, in at least one direction."""
    known = {direction for direction, capacity in capacities.items() if not capacity.is_floor}
    return [peer for peer in peers if any((peer, way) not in known for way in WAYS)]
