"""The bandwidth of each peer's link, up and down apart, from the flows of a round (rule 31).

A flow is what one peer received of another in one attempt. How many bytes that were follows from the plan; when the
first and the last came, the receiver says. Each flow goes through two directions: the sender's up, the receiver's down.

A flow that came as fast as it was asked for shows the least that its ways carry, and no more. One that took longer was
held up. A direction that was busy to the last with flows that were held up, and carried what it was thought able to
carry, was full: it is measured anew. One that carried more is raised. Flows that were held up while both their
directions are thought to have room were so by a direction that carries less by now: by the one that most of these bytes
have in common. Nothing else lowers an estimate, since a peer that is asked for little shows little. What lies between
two peers is told apart first (`pairs`).
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

BUSY = 0.5  # of the estimate: a direction that carried so much had its turn to show that it carries more
MOST = 0.5  # of a peer's bytes
NEARLY_FULL = 0.7  # of the estimate: what is shared by bursts and steady flows carries no more
HOPE = 2.0  # times the least that is known of a direction which may carry more: shares are dealt by it
HOPE_OF_REDUCERS = 4.0  # the same where a peer reduces alone: those that measured it were, as a rule, slower


def learn(
    capacities: dict[Direction, Capacity],
    pairs: dict[Pair, Capacity],
    flows: Iterable[Flow],
    at: float,
    hoped_s: float = 0.0,
) -> None:
    """Take the flows of one attempt into what is known. O(flows).

    `hoped_s`: in how many seconds all of them were to be over, by links that may carry more than was seen.
    """
    loads = loads_of(flows)
    held_up = _held_up(capacities, loads)
    narrow = narrow_flows(capacities, loads, held_up)
    # Nobody knew of these when more was hoped, and all that their senders send goes in step with what goes over them.
    waiting = {flow.sender for flow in narrow if (flow.sender, flow.receiver) not in limits_of(pairs)}
    learn_pairs(pairs, loads, held_up, narrow, at)
    held_up -= narrow
    slowing = _slowing(capacities, loads, held_up)
    for direction, load in loads.items():
        known = capacities.get(direction)
        if known is None:
            capacities[direction] = Capacity(min(load.bps, FASTEST_BPS), is_floor=True, measured_at=at)
            continue
        # One that held up most of what went through it was full until the first of that was over.
        was_full = load.is_steady or (load.part_of(held_up) > MOST and load.busy_bps < known.bps)
        is_slowing = direction in slowing and was_full
        was_suspected, known.is_suspected = known.is_suspected, is_slowing
        if load.is_of_averages and not was_suspected:
            is_slowing = False  # it may have been busy for a moment, and will not be asked for more than this again
        is_full = load.is_steady and load.part_of(held_up) >= STEADY and load.bps >= FULL * known.bps
        is_end = is_full and load.is_asked and _others_have_room(capacities, loads, direction)
        if is_slowing or is_end:
            known.is_floor = False
        if is_full:
            # What carried more than was thought, while the other ends were full, may carry more still.
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
    """Take what one idle link showed by itself: the least that its two directions carry.

    Nothing is lowered by it, as how much came is one peer's word; nor is it all that a direction carries, as the other
    end, or what lies between the two, may carry no more.
    """
    bps = min(flow.received / max(flow.last_s - flow.first_s, SHORTEST_S), FASTEST_BPS)
    for direction in directions_of(flow):
        known = capacities.get(direction)
        if known is None or bps > known.bps:
            capacities[direction] = Capacity(bps, is_floor=True, measured_at=at)


def _is_in_vain(known: Capacity, load: Load, hoped_s: float) -> bool:
    """Whether a direction of which more was hoped took longer than that. One that was hardly used shows nothing."""
    if not hoped_s or load.received <= known.bps * hoped_s or load.bps < BUSY * known.bps:
        return False
    return load.seconds > IN_TIME * hoped_s + PAUSE_S


def _waited(loads: Mapping[Direction, Load], direction: Direction, senders: AbstractSet[PeerId]) -> bool:
    """Whether most of what came to a peer was sent by these, or it is one of them; its averages wait for that too."""
    peer, way = direction
    if way == "up" and peer in senders:
        return True
    came = loads.get((peer, "down"))
    return came is not None and came.part_of({flow for flow in came.flows if flow.sender in senders}) > MOST


def _raise(known: Capacity, load: Load, at: float) -> None:
    """More than was thought possible came through: that is no opinion."""
    known.bps = min(load.bps, MOST_RISE * known.bps, FASTEST_BPS)
    known.measured_at = at


def _held_up(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load]) -> set[Flow]:
    """Flows that took longer than asked, without those that only kept step with one whose receiver was full.

    Of senders that say how often each of their links took no more, `Flow.is_held_up` knows that.
    """
    slow = {flow for load in loads.values() for flow in load.flows if flow.is_held_up}
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
    """The fewest directions that explain why flows were slower than what is known of their ways.

    Each time the one with most of these bytes, and of several the one that was used most; O(directions x flows). Where
    the other ends were nearly full, and fuller, it was they, each for itself: links that many flows share lose a part.
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
    """Whether most of these bytes had ends elsewhere that were nearly full, and fuller than this one."""
    known = max(use(capacities, loads, direction), NEARLY_FULL)
    its = {flow: other for flow, other in _other_ends(loads[direction], direction) if flow in slow}
    fuller = sum(flow.received for flow, other in its.items() if use(capacities, loads, other) > known)
    return fuller > MOST * sum(flow.received for flow in its)


def _other_ends(load: Load, direction: Direction) -> Iterator[tuple[Flow, Direction]]:
    """Each flow of a direction, and the other one that it goes through."""
    return ((flow, next(each for each in directions_of(flow) if each != direction)) for flow in load.flows)


def _others_have_room(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction
) -> bool:
    """Whether most of what a direction carried had room at its other ends: it is not theirs that was full."""
    load = loads[direction]
    free = sum(flow.received for flow, other in _other_ends(load, direction) if use(capacities, loads, other) < FULL)
    return free >= STEADY * load.received


def is_limit(known: Capacity | None) -> bool:
    """Whether a direction is known to carry no more: a round has found its end, or has tried to."""
    return known is not None and (known.is_tried or not known.is_floor)


def hope_of(*, trains: bool) -> float:
    """How much more is hoped of a peer's link.

    Were as much hoped of all, no round would tell an auxiliary that carries more from trainers that do not: they were
    measured with each other, and are held up together.
    """
    return HOPE if trains else HOPE_OF_REDUCERS


def budget_bps(
    capacities: Mapping[Direction, Capacity], direction: Direction, reserve: float = 0.0, *, hope: float = 1.0
) -> float:
    """What a plan may count on: bytes per second, without the household's part. 0: nothing is known.

    Where the least is all that is known, `hope` times as much.
    """
    known = capacities.get(direction)
    if known is None:
        return 0.0
    return known.bps * (1 - reserve) * (1.0 if is_limit(known) else hope)


def unknown(capacities: Mapping[Direction, Capacity], peers: Sequence[PeerId]) -> list[PeerId]:
    """Those of which one direction was never measured to its end."""
    known = {direction for direction, capacity in capacities.items() if not capacity.is_floor}
    return [peer for peer in peers if any((peer, way) not in known for way in WAYS)]
