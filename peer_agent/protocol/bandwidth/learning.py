"""The bandwidth of each peer's link, up and down apart, from the flows of a round (rule 31).

A flow is what one peer received of another in one attempt. How many bytes that were follows from the plan; when the
first and the last came, the receiver says. Each flow goes through two directions: the sender's up, the receiver's down.

A flow that came as fast as it was asked for shows the least that its ways carry, and no more. One that took longer was
held up. A direction that was busy to the last with flows that were held up, and carried what it was thought able to
carry, was full: it is measured anew. One that carried more is raised. Flows that were held up while both their
directions are thought to have room were so by a direction that carries less by now: by the one that most of these bytes
have in common. Nothing else lowers an estimate, since a peer that is asked for little shows little.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId

WEIGHT = 0.7  # of a new measurement against what was known before
FULL = 0.85  # of the estimate: a direction that carries so much has no room to speak of
STEADY = 0.8  # of a direction's bytes have to be in flows that lasted to its end; else it idled in between
TO_THE_END = 0.85  # of the time that a direction was used
MOST_RISE = 4.0  # in one round, whatever a receiver says of its seconds
SHORTEST_S = 0.25  # a flow that took less is start-up more than link
FASTER = 1.2  # times what a link showed: the other end is not what held it up
IN_TIME = 1.12  # times the seconds that were asked for: what took longer was held up
PAUSE_S = 0.1  # that a machine or a clock may add to them
FASTEST_BPS = 1.25e10  # 100 Gb/s: what is claimed beyond is no link of a home, nor of a data centre

Way = Literal["up", "down"]
Direction = tuple[PeerId, Way]
WAYS: tuple[Way, Way] = ("up", "down")


class Flow(Struct, frozen=True):
    """`received` bytes that came from `sender` to `receiver`, between two moments of the receiver's clock (seconds).

    `asked_s`: in how many seconds it was to come; 0 as fast as it could. `in_step`: one of several of its sender, of
    which none gets far ahead of the others.
    """

    sender: PeerId
    receiver: PeerId
    received: int
    first_s: float
    last_s: float
    asked_s: float = 0.0
    in_step: bool = False

    @property
    def is_held_up(self) -> bool:
        """Whether it took longer than it was asked to."""
        return self.last_s - self.first_s > IN_TIME * self.asked_s + (PAUSE_S if self.asked_s else -1.0)


class Capacity(Struct):
    """Bytes per second. `is_floor`: so much was seen, while nothing shows that it is all.

    `is_tried`: more was asked of it in a round, and did not come, for whatever reason.
    """

    bps: float
    is_floor: bool
    measured_at: float  # the round's number, or whatever orders measurements
    is_tried: bool = False


class Load(Struct):
    """What one direction carried in an attempt."""

    received: int = 0
    first_s: float = float("inf")
    last_s: float = 0.0
    flows: list[Flow] = []

    @property
    def seconds(self) -> float:
        """From its first byte to its last."""
        return max(self.last_s - self.first_s, SHORTEST_S)

    @property
    def bps(self) -> float:
        """Bytes per second over that time."""
        return self.received / self.seconds

    @property
    def is_steady(self) -> bool:
        """Whether most of it was under way until the end, so that the direction never idled."""
        until = self.first_s + TO_THE_END * self.seconds
        lasting = sum(flow.received for flow in self.flows if flow.last_s >= until)
        return lasting >= STEADY * self.received

    @property
    def is_asked(self) -> bool:
        """Whether a plan's pace said how fast all of it was to come."""
        return all(flow.asked_s for flow in self.flows)

    def is_held_up(self, held_up: AbstractSet[Flow]) -> bool:
        """Whether most of it was held up, here or at the other ends."""
        return sum(flow.received for flow in self.flows if flow in held_up) >= STEADY * self.received


def learn(capacities: dict[Direction, Capacity], flows: Iterable[Flow], at: float) -> None:
    """Take the flows of one attempt into what is known. O(flows)."""
    loads = loads_of(flows)
    held_up = _held_up(capacities, loads)
    slowing = _slowing(capacities, loads, held_up)
    for direction, load in loads.items():
        known = capacities.get(direction)
        if known is None:
            capacities[direction] = Capacity(min(load.bps, FASTEST_BPS), is_floor=True, measured_at=at)
            continue
        is_slowing = load.is_steady and direction in slowing
        is_full = load.is_steady and load.is_held_up(held_up) and load.bps >= FULL * known.bps
        if is_slowing or (is_full and _others_have_room(capacities, loads, direction)):
            known.is_floor = False
        known.is_tried = load.is_asked if is_full else known.is_tried and load.bps <= known.bps
        if load.bps >= known.bps:
            _raise(known, load, at)
        elif is_slowing or is_full:
            known.bps += WEIGHT * (load.bps - known.bps)
            known.measured_at = at


def learn_probe(capacities: dict[Direction, Capacity], flow: Flow, at: float) -> None:
    """Take what one idle link showed by itself: all that it carries, where the other end is known to carry more.

    Nothing is lowered by it: how much came is one peer's word.
    """
    bps = min(flow.received / max(flow.last_s - flow.first_s, SHORTEST_S), FASTEST_BPS)
    for direction, other in zip(directions_of(flow), reversed(directions_of(flow)), strict=True):
        known, partner = capacities.get(direction), capacities.get(other)
        is_all = partner is not None and partner.bps >= FASTER * bps
        if known is None or bps > known.bps:
            capacities[direction] = Capacity(bps, is_floor=not is_all, measured_at=at)
        elif is_all and bps >= FULL * known.bps:
            known.is_floor = False


def _raise(known: Capacity, load: Load, at: float) -> None:
    """More than was thought possible came through: that is no opinion."""
    known.bps = min(load.bps, MOST_RISE * known.bps, FASTEST_BPS)
    known.measured_at = at


def loads_of(flows: Iterable[Flow]) -> dict[Direction, Load]:
    """What each direction carried."""
    loads: dict[Direction, Load] = defaultdict(Load)
    for flow in flows:
        for direction in directions_of(flow):
            load = loads[direction]
            load.received += flow.received
            load.first_s, load.last_s = min(load.first_s, flow.first_s), max(load.last_s, flow.last_s)
            load.flows.append(flow)
    return loads


def directions_of(flow: Flow) -> tuple[Direction, Direction]:
    """The two directions that a flow goes through."""
    return (flow.sender, "up"), (flow.receiver, "down")


def _held_up(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load]) -> set[Flow]:
    """Flows that took longer than asked, without those that only kept step with one whose receiver was full."""
    slow = {flow for load in loads.values() for flow in load.flows if flow.is_held_up}
    full = {flow for flow in slow if flow.in_step and _use(capacities, loads, (flow.receiver, "down")) >= FULL}
    waits_for: dict[PeerId, set[PeerId]] = defaultdict(set)
    for flow in full:
        waits_for[flow.sender].add(flow.receiver)
    return {
        flow
        for flow in slow
        if not flow.in_step
        or not waits_for[flow.sender] - {flow.receiver}
        or _use(capacities, loads, (flow.sender, "up")) >= FULL
    }


def _slowing(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], held_up: AbstractSet[Flow]
) -> set[Direction]:
    """The fewest directions that explain why flows were slower than what is known of their ways.

    Each time the one with most of these bytes, and of several the one that was used most; O(directions x flows).
    """
    slow = {flow for flow in held_up if _has_room(capacities, loads, flow)}
    found: set[Direction] = set()
    while slow:
        size: dict[Direction, int] = defaultdict(int)
        for flow in slow:
            for direction in directions_of(flow):
                size[direction] += flow.received
        worst = max(size, key=lambda each: (size[each], _use(capacities, loads, each), each))
        found.add(worst)
        slow = {flow for flow in slow if worst not in directions_of(flow)}
    return found


def _others_have_room(
    capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction
) -> bool:
    """Whether most of what a direction carried had room at its other ends: it is not theirs that was full."""
    load = loads[direction]
    others = ((flow, next(each for each in directions_of(flow) if each != direction)) for flow in load.flows)
    free = sum(flow.received for flow, other in others if _use(capacities, loads, other) < FULL)
    return free >= STEADY * load.received


def _has_room(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], flow: Flow) -> bool:
    """Whether neither direction of a flow carried what it can."""
    return all(_use(capacities, loads, direction) < FULL for direction in directions_of(flow))


def _use(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction) -> float:
    """What a direction carried, in parts of what it is known to carry; of one that is not known, all."""
    known = capacities.get(direction)
    return loads[direction].bps / known.bps if known is not None and known.bps else 1.0


def budget_bps(capacities: Mapping[Direction, Capacity], direction: Direction, reserve: float = 0.0) -> float:
    """What a plan may count on: bytes per second, without the household's part. 0: nothing is known."""
    known = capacities.get(direction)
    return known.bps * (1 - reserve) if known is not None else 0.0


def unknown(capacities: Mapping[Direction, Capacity], peers: Sequence[PeerId]) -> list[PeerId]:
    """Those of which one direction was never measured to its end."""
    known = {direction for direction, capacity in capacities.items() if not capacity.is_floor}
    return [peer for peer in peers if any((peer, way) not in known for way in WAYS)]
