"""Flows of bytes between two peers, and what they show of the links that they go through. Bytes per second."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import PeerId

FULL = 0.85  # of the estimate: a direction that carries so much has no room to speak of
STEADY = 0.8  # of a direction's bytes have to be in flows that lasted to its end; else it idled in between
EDGE = 0.025  # of a direction's bytes, first and last, that a few flows carry alone
TO_THE_END = 0.85  # of the time that a direction was used
SHORTEST_S = 0.25  # a flow that took less is start-up more than link
IN_TIME = 1.12  # times the seconds that were asked for: what took longer was held up
PAUSE_S = 0.1  # that a machine or a clock may add to them
OFTEN_FULL = 0.3  # of a flow's seconds: so often is each of several that share a direction that is full
FASTER = 1.2  # times what was known: it is another link than was thought
MOST_RISE = 4.0  # in one round, whatever a receiver says of its seconds
WEIGHT = 0.7  # of a new measurement against what was known before
FASTEST_BPS = 1.25e10  # 100 Gb/s: what is claimed beyond is no link of a home, nor of a data centre

Way = Literal["up", "down"]
Direction = tuple[PeerId, Way]
WAYS: tuple[Way, Way] = ("up", "down")


class Flow(Struct, frozen=True):
    """`received` bytes that came from `sender` to `receiver`, between two moments of the receiver's clock (seconds).

    `asked_s`: in how many seconds it was to come; 0 as fast as it could. `in_step`: one of several of its sender, of
    which none gets far ahead of the others; `full_s`: in how many seconds its link took no more, if the sender says so.
    """

    sender: PeerId
    receiver: PeerId
    received: int
    first_s: float
    last_s: float
    asked_s: float = 0.0
    in_step: bool = False
    full_s: float | None = None

    @property
    def is_held_up(self) -> bool:
        """Whether it took longer than it was asked to, long enough to show that, and not for another's sake."""
        took_s, pause_s = self.last_s - self.first_s, PAUSE_S if self.asked_s else 0.0
        only_kept_step = self.full_s is not None and self.full_s < OFTEN_FULL * took_s
        return took_s > max(IN_TIME * self.asked_s + pause_s, SHORTEST_S) and not only_kept_step


class Capacity(Struct):
    """Bytes per second. `is_floor`: so much was seen, while nothing shows that it is all.

    `is_tried`: more was asked of it in a round, and did not come, for whatever reason. `is_suspected`: the last round
    would have it slower.
    """

    bps: float
    is_floor: bool
    measured_at: float  # the round's number, or whatever orders measurements
    is_tried: bool = False
    is_suspected: bool = False


class Load(Struct):
    """What one direction carried in an attempt."""

    received: int = 0
    first_s: float = float("inf")
    last_s: float = 0.0
    flows: list[Flow] = []
    _bps: float = 0.0  # 0: it is to be found anew

    def add(self, flow: Flow) -> None:
        """One more flow through it."""
        self.received += flow.received
        self._bps = 0.0
        self.first_s, self.last_s = min(self.first_s, flow.first_s), max(self.last_s, flow.last_s)
        self.flows.append(flow)

    @property
    def seconds(self) -> float:
        """From its first byte to its last."""
        return max(self.last_s - self.first_s, SHORTEST_S)

    @property
    def bps(self) -> float:
        """Bytes per second over that time, but for its edges; every flow is taken to come evenly.

        Where the last average trickles in long after all else, the direction did not carry less for that.
        """
        if not self._bps and self.received:
            times, carried = self._carried()
            first, last = np.interp([EDGE * carried[-1], (1 - EDGE) * carried[-1]], carried, times)
            self._bps = (1 - 2 * EDGE) * self.received / max(float(last - first), (1 - 2 * EDGE) * SHORTEST_S)
        return self._bps

    @property
    def is_steady(self) -> bool:
        """Whether most of it was under way until the end, so that the direction never idled."""
        until = self.first_s + TO_THE_END * self.seconds
        lasting = sum(flow.received for flow in self.flows if flow.last_s >= until)
        return lasting >= STEADY * self.received

    @property
    def busy_bps(self) -> float:
        """Bytes per second until flows with a part of its bytes had ended, as it may have idled from then on."""
        remaining, until = self.received, self.last_s
        for flow in sorted(self.flows, key=lambda flow: flow.last_s):
            until, remaining = flow.last_s, remaining - flow.received
            if remaining < STEADY * self.received:
                break
        times, carried = self._carried()
        busy_s = max(until - self.first_s, SHORTEST_S)
        return float(np.interp(until, times, carried)) / busy_s

    @property
    def is_asked(self) -> bool:
        """Whether a plan's pace said how fast all of it was to come."""
        return all(flow.asked_s for flow in self.flows)

    @property
    def is_of_averages(self) -> bool:
        """Whether it is the way down of a peer that reduces nothing: all that it ever carries is one vector."""
        return not any(flow.in_step for flow in self.flows)

    def bps_during(self, periods: Sequence[Flow]) -> NDArray[np.float64]:
        """Bytes per second of all its flows together while each of these lasted; every flow is taken to come evenly.

        O((flows + periods) log flows).
        """
        times, until = self._carried()
        first, last = _lasted(periods)
        carried: NDArray[np.float64] = np.interp(last, times, until) - np.interp(first, times, until)
        return carried / (last - first)

    def _carried(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Moments at which a flow begins or ends, and the bytes that had come until then. O(flows log flows)."""
        size = np.array([flow.received for flow in self.flows], np.float64)
        began, ended = _lasted(self.flows)
        times, changes = np.concatenate([began, ended]), np.concatenate([size, -size]) / np.tile(ended - began, 2)
        order = np.argsort(times)
        times, rates = times[order], np.cumsum(changes[order])
        return times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])

    def part_of(self, flows: AbstractSet[Flow]) -> float:
        """Which part of its bytes came in these flows."""
        return sum(flow.received for flow in self.flows if flow in flows) / max(self.received, 1)


def _lasted(periods: Sequence[Flow]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When each began and ended; none is shorter than can be measured."""
    first, last = np.array([(each.first_s, each.last_s) for each in periods], np.float64).reshape(-1, 2).T
    return first, np.maximum(last, first + SHORTEST_S)


def is_in_time(known: Capacity, load: Load, late: AbstractSet[Flow]) -> bool:
    """Whether all that is known to fit came when it was asked to: nothing shows that no more would have."""
    is_used = load.is_asked and load.bps >= FULL * known.bps
    return is_used and load.part_of(late) <= 1 - STEADY


def loads_of(flows: Iterable[Flow]) -> dict[Direction, Load]:
    """What each direction carried."""
    loads: dict[Direction, Load] = defaultdict(Load)
    for flow in flows:
        for direction in directions_of(flow):
            loads[direction].add(flow)
    return loads


def directions_of(flow: Flow) -> tuple[Direction, Direction]:
    """The two directions that a flow goes through."""
    return (flow.sender, "up"), (flow.receiver, "down")


def has_room(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], flow: Flow) -> bool:
    """Whether neither direction of a flow carried what it can."""
    return all(use(capacities, loads, direction) < FULL for direction in directions_of(flow))


def use(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction) -> float:
    """What a direction carried, in parts of what it is known to carry; of one that is not known, all."""
    known = capacities.get(direction)
    return loads[direction].bps / known.bps if known is not None and known.bps else 1.0
