"""Measure how late contributors were in a round (rule 8). The last 20 rounds determine how long the next plan waits."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from peer_agent.protocol import deadlines
from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.round.attempt import has_quorum
from peer_agent.protocol.coordinator.state import Late, Member, Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.wire import HEADER

WHOLE = 0.95  # fraction of a slot's chunks; with fewer, its sender was dropped or lost, so its times mean nothing


def sigma_of(state: RunState, duration_s: float) -> float:
    """Return sigma: how long reducers wait for a late chunk, as a fraction of the plan's time."""
    return deadlines.sigma_of(deadlines.round_latenesses([late.by for late in state.latenesses]), duration_s)


# --- late slots


def left_out(round_: Round, done: m.SpanDone) -> set[int]:
    """Return the slots missing from at least one closed chunk of this span, except those the coordinator dropped."""
    if round_.plan is None or not round_.plan.sigma or all(len(p.slots) == len(round_.slots) for p in done.included):
        return set()
    return {slot for slot in range(len(round_.slots)) if slot not in round_.dropped and _missed(round_, done, slot)}


def left_behind(state: RunState, round_: Round, done: m.SpanDone) -> set[int]:
    """Return the late slots that missed more consecutive chunks than a batch has.

    Leave out slots without which no quorum would remain (rule 7).
    """
    behind: set[int] = set()
    for slot in sorted(left_out(round_, done)):
        gone = round_.dropped | behind | {slot}
        rest = tuple(number for number in range(len(round_.slots)) if number not in gone)
        batch = deadlines.batch_chunks([round_.slots[slot].codec], state.grid.chunk_elements)
        is_behind = _longest_row(_missed(round_, done, slot)) > batch
        if is_behind and has_quorum(round_.slots, Included(0, state.grid.chunks, rest)):
            behind.add(slot)
    return behind


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


class _Share(Struct, frozen=True):
    """The part of a slot's gradient that the plan sends to one reducer."""

    peer: PeerId
    chunks: int
    tokens: int  # summed over these chunks
    bytes: float  # fewest bytes that arrive if no chunk is left out


def take_lateness(state: RunState, member: Member, message: m.Arrivals) -> None:
    """Record how late each slot was at one reducer in the latest attempt, once per reducer.

    Skip plans whose links may be far faster than assumed. Such rounds end early and say nothing about later ones.
    """
    measured = state.links.attempt
    if measured is None or message.holds or not measured.plan.sigma or (member.peer, False) in measured.told:
        return
    plan = measured.plan
    if plan.pace >= deadlines.FAR_AHEAD:
        return
    place = message.fence, message.step, message.attempt
    if (plan.fence, plan.step, plan.attempt) != place:
        return
    shares = list(_shares(plan, member.peer))
    if not shares:
        return
    if not state.latenesses or state.latenesses[-1].place != place:
        state.latenesses.append(Late(place))
    by = state.latenesses[-1].by
    for peer, late in _latenesses(plan, shares, {each.sender: each for each in message.arrivals}):
        by[peer] = max(by.get(peer, 0.0), late)


def _shares(plan: m.Plan, reducer: PeerId) -> Iterator[_Share]:
    spans = [span for span in plan.spans if span.reducer == reducer and not span.root]
    for slot in plan.slots:
        parts = [
            (min(weight.stop, span.stop) - max(weight.first, span.first), weight.tokens)
            for weight in slot.weights
            for span in spans
            if weight.tokens and weight.first < span.stop and span.first < weight.stop
        ]
        chunks = sum(length for length, _ in parts)
        size = HEADER.size + encoded_size(slot.codec, plan.chunk_elements)
        if chunks and slot.peer != reducer:
            yield _Share(
                slot.peer, chunks, sum(length * tokens for length, tokens in parts), WHOLE * (chunks - 1) * size
            )


def _latenesses(
    plan: m.Plan, shares: Sequence[_Share], arrivals: Mapping[PeerId, m.Arrival]
) -> Iterator[tuple[PeerId, float]]:
    """Yield each peer's lateness: that of its first or last chunk, or the one that the reducer reports.

    The largest of the three counts. A peer that missed a deadline counts as somewhat later than sigma, because its
    arrival time is unknown.
    """
    came = [arrivals.get(share.peer) for share in shares]
    whole_s, tokens = deadlines.coming_s(plan), [share.tokens for share in shares]
    first = [each.first_s if each is not None else float("inf") for each in came]
    last = [each.last_s if each is not None else float("inf") for each in came]
    count = max(share.chunks for share in shares)
    batch = min(deadlines.batch_chunks({slot.codec for slot in plan.slots}, plan.chunk_elements), count)
    begun = deadlines.lateness(plan, whole_s * batch / count, first, tokens)
    ended = deadlines.lateness(plan, whole_s, last, tokens)
    for share, arrival, *late in zip(shares, came, begun, ended, strict=True):
        latest = plan.sigma
        if arrival is not None and arrival.size >= share.bytes:
            latest = min(max(*late, arrival.late), deadlines.MOST_SIGMA)
        was_in_time = latest < plan.sigma
        yield share.peer, latest if was_in_time else max(latest, deadlines.unknown_lateness(plan.sigma))
