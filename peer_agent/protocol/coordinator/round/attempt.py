"""Facts about the open attempt: which reducer averages which chunks, what has arrived, and whether a quorum is left."""

import math
from collections.abc import Collection, Container, Iterable, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.round.voiding import is_current
from peer_agent.protocol.coordinator.state import Phase, Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.plan import QUORUM_PERCENT


def open_round(state: RunState, message: m.Attempted) -> Round | None:
    """Return the round being reduced, or None if the message does not belong to the round's current plan."""
    round_ = state.round
    if state.phase is not Phase.REDUCE or round_ is None or not round_.is_planned or not is_current(state, message):
        return None
    return round_


def chunks_of(round_: Round, without: Container[int] = ()) -> dict[PeerId, int]:
    """Return how many chunks each reducer averages in this attempt, not counting the spans in `without`."""
    chunks: dict[PeerId, int] = {}
    for span in round_.plan.spans if round_.plan else ():
        if not span.root and span.span not in without:
            chunks[span.reducer] = chunks.get(span.reducer, 0) + span.stop - span.first
    return chunks


def open_at(round_: Round) -> set[PeerId]:
    """Return the reducers that have not finished all their spans."""
    return set(chunks_of(round_, round_.done))


def has_delivered(round_: Round, slot: int) -> bool:
    """Return True if every unfinished reducer has all of a slot's chunks, so that its sender is no longer needed."""
    if round_.plan is None:
        return False
    expected = chunks_of(round_)
    got = {peer: round_.seen_at(peer).get(slot) for peer in open_at(round_)}
    return all(seen is not None and seen.chunks >= expected[peer] for peer, seen in got.items())


def has_quorum_without(state: RunState, round_: Round, slots: Collection[int]) -> bool:
    """Return True if every open chunk keeps a quorum without `slots` and the slots already dropped (rule 7)."""
    left = tuple(slot for slot in range(len(round_.slots)) if slot not in round_.dropped and slot not in slots)
    parts = [(0, state.grid.chunks)]
    if round_.plan is not None:
        parts = [(s.first, s.stop) for s in round_.plan.spans if not s.root and s.span not in round_.done]
    return all(has_quorum(round_.slots, Included(first, stop, left)) for first, stop in parts)


def has_quorum(slots: Sequence[m.Slot], part: Included) -> bool:
    """Return True if the slots in `part` have at least `QUORUM_PERCENT` of each chunk's planned tokens (rule 7)."""
    if len(part.slots) == len(slots):
        return True
    edges = sorted({w.first for slot in slots for w in slot.weights if part.first < w.first < part.stop} | {part.first})
    for chunk in edges:
        planned = _tokens_at(slots, chunk)
        if 100 * sum(planned[slot] for slot in part.slots) < QUORUM_PERCENT * sum(planned):
            return False
    return True


def norm_limit(round_: Round, included: Iterable[Included]) -> float:
    """Return the largest possible norm of averages with these contributors, before encoding.

    An average is the weighted mean of gradients. The offers state the gradients' norms, and the reducers check them
    (rule 12). Each slot counts with its largest share of any chunk. Other rules than the mean may choose another slot
    in each chunk.
    """
    slots, among = round_.slots, {part.slots for part in included}
    if round_.rule != "mean":
        return math.sqrt(sum((slot.scale * slot.norm) ** 2 for slot in slots))
    if round_.norm and all(len(those) == len(slots) for those in among):
        return round_.norm
    shares = [0.0] * len(slots)
    for chunk in {weight.first for slot in slots for weight in slot.weights}:
        planned = _tokens_at(slots, chunk)
        for those in among:
            total = sum(planned[slot] for slot in those) or 1
            for slot in those:
                shares[slot] = max(shares[slot], planned[slot] / total)
    return sum(share * slot.scale * slot.norm for share, slot in zip(shares, slots, strict=True))


def _tokens_at(slots: Sequence[m.Slot], chunk: int) -> list[int]:
    return [next((w.tokens for w in slot.weights if w.first <= chunk < w.stop), 0) for slot in slots]
