"""Keep estimates of a run's links, and measure a round's transfers (rule 31).

The plan limits the sizes of transfers, so that receivers can misreport only times. Nothing here knows what a member or
a phase is: the coordinator says when an attempt begins and when to learn from it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import SHORTEST_S, Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import learn
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Pair
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.timing import coming_s
from peer_agent.protocol.wire import HEADER

FRAME_BYTES = HEADER.size + 16  # maximum number of bytes in a frame besides the chunk's values
WHOLE = 0.95  # fraction of a gradient; if less arrived, its sender was dropped or lost
MOST_KNOWN = 20_000  # maximum number of directions and of machines remembered; the first seen are forgotten first


class Attempt(Struct):
    """An attempt whose transfers are being measured: its plan, and the peers' reports about it."""

    plan: m.Plan
    planned_at: float
    hoped_s: float = 0.0  # seconds that the attempt would take if links were as fast as hoped
    told: set[tuple[PeerId, bool]] = field(default_factory=set)  # peer, and True if it then had all averages
    gradients: list[Flow] = field(default_factory=list)
    averages: list[Flow] = field(default_factory=list)
    full_s: dict[Pair, float] = field(default_factory=dict)  # seconds for which a gradient's link was full
    held_s: dict[Pair, float] = field(default_factory=dict)  # the part of `full_s` in which the reducer paused reading


class Probe(Struct):
    """A link probe: the two ends, when it began, and which ends have reported. `member` is the end that began it."""

    member: PeerId
    listener: PeerId
    begun_at: float
    rounds: int  # number of rounds when the probe began
    told: set[PeerId] = field(default_factory=set)


class Probed(Struct):
    """A machine's probes under this host, over all its sessions."""

    begun: int = 0  # number of probes that the machine began
    partners: set[PeerId] = field(default_factory=set)  # the first few peers at the other end


class Links(Struct):
    """Estimates of what a run's links carry in bytes per second, and the measurements in progress."""

    capacities: dict[Direction, Capacity] = field(default_factory=dict)
    pairs: dict[Pair, Capacity] = field(default_factory=dict)  # pairs slower than their links
    attempt: Attempt | None = None  # the last planned attempt, until it has been learned from
    probes: dict[int, Probe] = field(default_factory=dict)  # probes in progress, by number
    probe_number: int = 0
    probed: dict[PeerId, Probed] = field(default_factory=dict)


def observe(links: Links, receiver: PeerId, message: m.Arrivals, now: float) -> None:
    """Use a receiver's first report about the latest attempt. Ignore senders that were not planned."""
    attempt = links.attempt
    said = (receiver, bool(message.holds))  # a peer that reduces and receives averages sends one report about each
    if attempt is None or said in attempt.told or not _is_of(attempt.plan, message):
        return
    attempt.told.add(said)
    flows = _flows(attempt.plan, receiver, message.arrivals, now - attempt.planned_at)
    (attempt.averages if message.holds else attempt.gradients).extend(flows)
    if not message.holds:
        senders = {slot.peer for slot in attempt.plan.slots}
        held_s = ((each.sender, each.held_s) for each in message.arrivals if each.sender in senders)
        attempt.held_s |= {(sender, receiver): seconds for sender, seconds in held_s}
    if message.holds:
        reducers = {span.reducer for span in attempt.plan.spans}
        told = ((to.receiver, to.full_s) for to in message.departures if to.receiver in reducers)
        attempt.full_s |= {(receiver, reducer): full_s for reducer, full_s in told}


def _is_of(plan: m.Plan, message: m.Arrivals) -> bool:
    return (plan.step, plan.fence, plan.attempt) == (message.step, message.fence, message.attempt)


def _flows(plan: m.Plan, receiver: PeerId, arrivals: Iterable[m.Arrival], elapsed_s: float) -> Iterator[Flow]:
    """Yield the flows in one receiver's report. Arrival times are capped at the time of the report."""
    planned = planned_sizes(plan, receiver)
    for arrival in arrivals:
        size = min(arrival.size, planned.pop(arrival.sender, 0))
        if size and arrival.first_s <= min(arrival.last_s, elapsed_s):
            yield Flow(arrival.sender, receiver, size, arrival.first_s, min(arrival.last_s, elapsed_s))


def planned_sizes(plan: m.Plan, receiver: PeerId) -> dict[PeerId, int]:
    """Return how many bytes each sender may send to a receiver: averages, and gradients if the receiver reduces."""
    sizes: dict[PeerId, int] = {}
    chunks = dict[PeerId, int]()
    for span in plan.spans:
        if not span.root:
            chunks[span.reducer] = chunks.get(span.reducer, 0) + span.stop - span.first
    for reducer, count in chunks.items():
        if reducer != receiver:
            sizes[reducer] = _size(plan, plan.codec_down, count)
    for slot in plan.slots if receiver in chunks else ():
        if slot.peer != receiver:
            sizes[slot.peer] = sizes.get(slot.peer, 0) + _size(plan, slot.codec, chunks[receiver])
    return sizes


def _size(plan: m.Plan, codec: Codec, chunks: int) -> int:
    return chunks * (encoded_size(codec, plan.chunk_elements) + FRAME_BYTES)


def begin(links: Links, plan: m.Plan, now: float, hoped: float = 1.0) -> None:
    """Begin to collect a plan's transfers.

    `hoped`: the fraction of the planned time that is enough if the links are as fast as hoped.
    """
    links.attempt = Attempt(plan, now, hoped * coming_s(plan))


def learn_attempt(links: Links, told: Mapping[PeerId, float], at: float) -> None:
    """Learn link speeds from the last attempt, if that has not been done.

    `told`: the senders' upload limits in bytes per second. `at`: the number of rounds so far.
    """
    attempt, links.attempt = links.attempt, None
    if attempt is None:
        return
    learn(links.capacities, links.pairs, _as_asked(attempt, told), at, attempt.hoped_s)
    for known in (links.capacities, links.probed):
        _forget_old(known)


def _as_asked(attempt: Attempt, told: Mapping[PeerId, float]) -> Iterator[Flow]:
    """Yield an attempt's flows with their planned durations. `told`: the senders' upload limits in bytes per second.

    Gradients follow the plan's pace; a partial gradient gets a proportional share of the time. Averages are planned to
    take as long as the gradients took to reach their reducer. If that reducer reported no gradients, its averages count
    as on time.
    """
    size = Counter[PeerId]()
    for flow in (*attempt.gradients, *attempt.averages):
        size[flow.sender] += flow.received
    least_s = {peer: size[peer] / rate for peer, rate in told.items()}
    plan, full_s = attempt.plan, attempt.full_s
    slots, chunks = {slot.peer: slot for slot in plan.slots}, Counter[PeerId]()
    for span in plan.spans:
        chunks[span.reducer] += 0 if span.root else span.stop - span.first
    tells = {sender for sender, _ in full_s}
    asked_s = coming_s(plan) / plan.pace if plan.pace else 0.0
    closing: dict[PeerId, tuple[float, float]] = {}
    for flow in attempt.gradients:
        first_s, last_s = closing.get(flow.receiver, (0.0, 0.0))
        closing[flow.receiver] = max(first_s, flow.first_s), max(last_s, flow.last_s)
        pair = flow.sender, flow.receiver
        was_full_s = full_s.get(pair, 0.0) - attempt.held_s.get(pair, 0.0) if flow.sender in tells else None
        part = _came_part(plan, slots, chunks, flow)
        sent_s = max(asked_s if part > WHOLE else part * asked_s, least_s.get(flow.sender, 0.0))
        yield replace(flow, asked_s=sent_s, in_step=True, full_s=was_full_s)
    for flow in attempt.averages:
        first_s, last_s = closing.get(flow.sender, (0.0, math.inf))
        yield replace(flow, asked_s=max(last_s - first_s, SHORTEST_S, least_s.get(flow.sender, 0.0)))


def _came_part(plan: m.Plan, slots: Mapping[PeerId, m.Slot], chunks: Mapping[PeerId, int], flow: Flow) -> float:
    """Return what fraction of a sender's gradient arrived, counting only chunks in which its slot carries weight."""
    slot = slots.get(flow.sender)
    if slot is None:
        return 1.0
    every = max(sum(weight.stop - weight.first for weight in slot.weights), 1)
    weighty = sum(weight.stop - weight.first for weight in slot.weights if weight.tokens) / every
    return flow.received / max(weighty * _size(plan, slot.codec, chunks[flow.receiver]), 1)


def _forget_old(known: dict[Any, Any]) -> None:
    for key in list(known)[: max(0, len(known) - MOST_KNOWN)]:
        del known[key]
