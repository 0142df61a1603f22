"""Flows of bytes between two peers, and what they reveal about links. Speeds are in bytes per second.

A direction is one peer's uplink or downlink. A pair is a sender and a receiver.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from peer_agent.protocol.identifiers import PeerId

FULL = 0.85  # fraction of the estimate at which a direction counts as full
STEADY = 0.8  # a direction was never idle if flows that lasted to the end carried at least this fraction of its bytes
EDGE = 0.025  # fraction of a direction's bytes to ignore at the start and end, when only a few flows are running
TO_THE_END = 0.85  # a flow lasted to the end if it took at least this fraction of the direction's time
SHORTEST_S = 0.25  # a shorter flow measures start-up rather than capacity
IN_TIME = 1.12  # times the planned seconds; a flow that takes longer counts as delayed
PAUSE_S = 0.1  # extra seconds of slack, for hiccups of a machine or clock
OFTEN_FULL = 0.3  # in a full direction, each flow finds the link full for at least this fraction of its time
FASTER = 1.2  # times the estimate; if a direction is faster than this, the estimate was wrong
MOST_RISE = 4.0  # times the estimate: the largest rise per round, since receivers may report false times
WEIGHT = 0.7  # weight of a new measurement relative to the old estimate
FASTEST_BPS = 1.25e10  # 100 Gb/s; any faster measurement must be false

Way = Literal["up", "down"]
Direction = tuple[PeerId, Way]
WAYS: tuple[Way, Way] = ("up", "down")


class Flow(Struct, frozen=True):
    """The bytes that `receiver` got from `sender` between two times on the receiver's clock (in seconds)."""

    sender: PeerId
    receiver: PeerId
    received: int
    first_s: float
    last_s: float
    asked_s: float = 0.0  # planned seconds; 0 means as fast as possible
    in_step: bool = False  # the sender keeps its flows level, so none gets far ahead of the others
    full_s: float | None = None  # seconds for which the link was too full to take more bytes, if reported by the sender

    @property
    def is_held_up(self) -> bool:
        """True if a link delayed the flow: it took longer than planned.

        A flow does not count if its sender only slowed it down to keep all its flows level.
        """
        took_s, pause_s = self.last_s - self.first_s, PAUSE_S if self.asked_s else 0.0
        only_kept_step = self.full_s is not None and self.full_s < OFTEN_FULL * took_s
        return took_s > max(IN_TIME * self.asked_s + pause_s, SHORTEST_S) and not only_kept_step


class Capacity(Struct):
    """An estimate of how much one direction of a link, or one pair of peers, can carry."""

    bps: float  # bytes per second
    is_floor: bool  # the estimate is only a lower bound
    measured_at: float  # the round's number, or any other number that orders measurements
    is_tried: bool = False  # direction: a round needed more but did not get it; pair: two rounds hit the limit
    is_suspected: bool = False  # the direction looked slower in the last round


class Load(Struct):
    """One attempt's flows in one direction of a link, or between one pair of peers."""

    received: int = 0
    first_s: float = float("inf")
    last_s: float = 0.0
    flows: list[Flow] = []
    _bps: float = 0.0  # cached `bps`; 0 means not yet computed

    def add(self, flow: Flow) -> None:
        self.received += flow.received
        self._bps = 0.0
        self.first_s, self.last_s = min(self.first_s, flow.first_s), max(self.last_s, flow.last_s)
        self.flows.append(flow)

    @property
    def seconds(self) -> float:
        return max(self.last_s - self.first_s, SHORTEST_S)

    @property
    def bps(self) -> float:
        """Bytes per second, if each flow was spread evenly over its time.

        The first and last bytes are ignored, because they may trickle in.
        """
        if len(self.flows) == 1:
            return self.received / self.seconds
        if not self._bps and self.received:
            times, carried = self._carried()
            first, last = np.interp([EDGE * carried[-1], (1 - EDGE) * carried[-1]], carried, times)
            self._bps = (1 - 2 * EDGE) * self.received / max(float(last - first), (1 - 2 * EDGE) * SHORTEST_S)
        return self._bps

    @property
    def is_steady(self) -> bool:
        """True if the direction was never idle: flows that lasted to the end carried most of its bytes."""
        until = self.first_s + TO_THE_END * self.seconds
        lasting = sum(flow.received for flow in self.flows if flow.last_s >= until)
        return lasting >= STEADY * self.received

    @property
    def busy_bps(self) -> float:
        """Bytes per second up to the time when flows with most of the bytes had ended.

        The direction may have been idle after that.
        """
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
        """True if the plan set a pace for every one of these flows."""
        return all(flow.asked_s for flow in self.flows)

    @property
    def is_of_averages(self) -> bool:
        """True if these flows carry only averages. A plan sends at most one vector of averages over a downlink."""
        return not any(flow.in_step for flow in self.flows)

    def bps_during(self, periods: Sequence[Flow]) -> NDArray[np.float64]:
        """Return the combined bytes per second of all flows in each period. O((flows + periods) log flows)."""
        times, until = self._carried()
        first, last = _lasted(periods)
        carried: NDArray[np.float64] = np.interp(last, times, until) - np.interp(first, times, until)
        return carried / (last - first)

    def _carried(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times at which flows begin or end, and how many bytes had been received by each of these times.

        O(flows log flows).
        """
        size = np.array([flow.received for flow in self.flows], np.float64)
        began, ended = _lasted(self.flows)
        times, changes = np.concatenate([began, ended]), np.concatenate([size, -size]) / np.tile(ended - began, 2)
        order = np.argsort(times)
        times, rates = times[order], np.cumsum(changes[order])
        return times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])

    def part_of(self, flows: AbstractSet[Flow]) -> float:
        return sum(flow.received for flow in self.flows if flow in flows) / max(self.received, 1)


def _lasted(periods: Sequence[Flow]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, last = np.array([(each.first_s, each.last_s) for each in periods], np.float64).reshape(-1, 2).T
    return first, np.maximum(last, first + SHORTEST_S)


def is_in_time(known: Capacity, load: Load, late: AbstractSet[Flow]) -> bool:
    """Return True if a direction or pair was fully used, and yet most of its bytes were on time.

    Its capacity may then be higher than estimated.
    """
    is_used = load.is_asked and load.bps >= FULL * known.bps
    return is_used and load.part_of(late) <= 1 - STEADY


def loads_of(flows: Iterable[Flow]) -> dict[Direction, Load]:
    loads: dict[Direction, Load] = defaultdict(Load)
    for flow in flows:
        for direction in directions_of(flow):
            loads[direction].add(flow)
    return loads


def directions_of(flow: Flow) -> tuple[Direction, Direction]:
    """Return the two directions used by a flow: the sender's uplink and the receiver's downlink."""
    return (flow.sender, "up"), (flow.receiver, "down")


def has_room(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], flow: Flow) -> bool:
    """Return True if neither of the two directions used by a flow was full."""
    return all(use(capacities, loads, direction) < FULL for direction in directions_of(flow))


def use(capacities: Mapping[Direction, Capacity], loads: Mapping[Direction, Load], direction: Direction) -> float:
    """Return the fraction of a direction's estimated capacity that was used, or 1 if there is no estimate."""
    known = capacities.get(direction)
    return loads[direction].bps / known.bps if known is not None and known.bps else 1.0
