"""Measure how late contributors were in a round (rule 8). The last 20 rounds determine how long the next plan waits."""

from collections.abc import Collection, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.coordinator.round.attempt import has_quorum
from peer_agent.protocol.coordinator.state import Late, Member, Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included


def sigma_of(state: RunState, duration_s: float) -> float:
    """Return sigma: how long reducers wait for a late chunk, as a fraction of the plan's time."""
    return timing.sigma_of(timing.round_latenesses([late.by for late in state.timings.chunks]), duration_s)


# --- late slots


def left_out(round_: Round, done: m.SpanDone) -> set[int]:
    """Return the slots missing from at least one closed chunk of this span, except those the coordinator dropped."""
    if round_.plan is None or not round_.plan.sigma or all(len(p.slots) == len(round_.slots) for p in done.included):
        return set()
    return {slot for slot in range(len(round_.slots)) if slot not in round_.dropped and _missed(round_, done, slot)}


def left_behind(state: RunState, round_: Round, done: m.SpanDone) -> set[int]:
    """Return the late slots that missed more consecutive chunks of a span than a batch has, and are dispensable."""
    behind = {slot for slot in left_out(round_, done) if is_behind(state, round_, done, slot)}
    return dispensable(state, round_, behind)


def is_behind(state: RunState, round_: Round, done: m.SpanDone, slot: int) -> bool:
    """Return True if a slot missed more consecutive chunks of a span than a batch has."""
    return _longest_row(_missed(round_, done, slot)) > _batch(state, round_, slot)


def may_be_behind(state: RunState, round_: Round, reducer: PeerId, slots: Collection[int]) -> set[int]:
    """Return those of the slots that may have missed more than a batch of a reducer's chunks by now."""
    plan = round_.plan
    if plan is None or not plan.sigma or state.now - round_.planned_at < timing.waiting_s(plan):
        return set()
    spans = [span for span in plan.spans if span.reducer == reducer and not span.root]
    found = set()
    for slot in set(slots).intersection(range(len(round_.slots))):
        parts = ((w.first, w.stop) for w in round_.slots[slot].weights if w.tokens)
        chunks = sum(max(0, min(stop, s.stop) - max(first, s.first)) for first, stop in parts for s in spans)
        if chunks > _batch(state, round_, slot):
            found.add(slot)
    return found


def _batch(state: RunState, round_: Round, slot: int) -> int:
    return timing.batch_chunks([round_.slots[slot].codec], state.grid.chunk_elements)


def dispensable(state: RunState, round_: Round, slots: Collection[int]) -> set[int]:
    """Leave out slots that were dropped, and those without which no quorum would remain (rule 7)."""
    found: set[int] = set()
    for slot in sorted(set(slots).intersection(range(len(round_.slots))) - round_.dropped):
        gone = round_.dropped | found | {slot}
        rest = tuple(number for number in range(len(round_.slots)) if number not in gone)
        if has_quorum(round_.slots, Included(0, state.grid.chunks, rest)):
            found.add(slot)
    return found


def _missed(round_: Round, done: m.SpanDone, slot: int) -> list[tuple[int, int]]:
    """Return the ranges of chunks that lack this slot's gradient although the plan gives it weight there."""
    return [
        (max(part.first, weight.first), min(part.stop, weight.stop))
        for part in done.included
        if slot not in part.slots
        for weight in round_.slots[slot].weights
        if weight.tokens and part.first < weight.stop and weight.first < part.stop
    ]


def _longest_row(missed: Sequence[tuple[int, int]]) -> int:
    longest, began, ended = 0, -1, -1
    for first, stop in missed:
        began = began if first == ended else first
        ended = stop
        longest = max(longest, ended - began)
    return longest


# --- lateness


def take_lateness(state: RunState, member: Member, message: m.Arrivals) -> None:
    """Record how late each slot was at one reducer in the latest attempt, once per reducer.

    A peer that missed a deadline counts as somewhat later than sigma, because its arrival time is unknown. Skip plans
    whose links may be far faster than assumed. Such rounds end early and say nothing about later ones.
    """
    measured = state.links.attempt
    if measured is None or message.holds or not measured.plan.sigma or (member.peer, False) in measured.told:
        return
    plan = measured.plan
    place = message.fence, message.step, message.attempt
    if plan.pace >= timing.FAR_AHEAD or (plan.fence, plan.step, plan.attempt) != place:
        return
    senders = _senders_to(plan, member.peer)
    if not senders:
        return
    rounds = state.timings.chunks
    if not rounds or rounds[-1].place != place:
        rounds.append(Late(place))
    said = {each.sender: each.late for each in message.arrivals}
    for peer in senders:
        late = min(said.get(peer, plan.sigma), timing.MOST_SIGMA)
        late = late if late < plan.sigma else max(late, timing.unknown_lateness(plan.sigma))
        rounds[-1].by[peer] = max(rounds[-1].by.get(peer, 0.0), late)


def _senders_to(plan: m.Plan, reducer: PeerId) -> list[PeerId]:
    """Return the peers whose gradients the plan sends to a reducer over a link."""
    spans = [span for span in plan.spans if span.reducer == reducer and not span.root]
    return [
        slot.peer
        for slot in plan.slots
        if slot.peer != reducer
        and any(w.tokens and w.first < s.stop and s.first < w.stop for w in slot.weights for s in spans)
    ]
