"""Who was late in a round that has deadlines (rule 8): found in what reducers averaged, and in when it came to them.

How late the chunks of twenty rounds came decides how long the next plan waits for one.
"""

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

WHOLE = 0.95  # of its chunks: who sent less was dropped or gone, and its last one tells nothing


def sigma_of(state: RunState, duration_s: float) -> float:
    """The part of a plan's time for which its chunks are waited for."""
    return deadlines.sigma_of(deadlines.round_latenesses([late.by for late in state.latenesses]), duration_s)


# --- who is late


def left_out(round_: Round, done: m.SpanDone) -> set[int]:
    """Slots that the coordinator has not dropped, without which a chunk of this span closed."""
    if round_.plan is None or not round_.plan.sigma or all(len(p.slots) == len(round_.slots) for p in done.included):
        return set()
    return {slot for slot in range(len(round_.slots)) if slot not in round_.dropped and _missed(round_, done, slot)}


def left_behind(state: RunState, round_: Round, done: m.SpanDone) -> set[int]:
    """Those of them that missed more than a batch in a row; no more than all chunks can do without (rule 7)."""
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
    """Runs of chunks in which the plan gives a slot weight, and whose averages do not have it."""
    return [
        (max(part.first, weight.first), min(part.stop, weight.stop))
        for part in done.included
        if slot not in part.slots
        for weight in round_.slots[slot].weights
        if weight.tokens and part.first < weight.stop and weight.first < part.stop
    ]


def _longest_row(missed: Sequence[tuple[int, int]]) -> int:
    """How many chunks lie in a row, of runs in ascending order."""
    longest, began, ended = 0, -1, -1
    for first, stop in missed:
        began = began if first == ended else first
        ended = stop
        longest = max(longest, ended - began)
    return longest


# --- how late


class _Share(Struct, frozen=True):
    """What the plan has a slot send to one reducer."""

    peer: PeerId
    chunks: int
    tokens: int  # summed over these chunks
    bytes: float  # at least, if none of it was left out


def take_lateness(state: RunState, member: Member, message: m.Arrivals) -> None:
    """Keep how late each slot was at a reducer, by what it says of the attempt that was planned last: once.

    A plan whose links may carry far more than it says takes less than its time: nobody is late there, which says
    nothing of the plans that follow.
    """
    measured = state.measured
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
    """Of the first chunk, the last or what the reducer says of those between, whichever was later. Of whom a chunk was
    waited for in vain counts as somewhat later than that: how much later it would have come, nobody knows."""
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
