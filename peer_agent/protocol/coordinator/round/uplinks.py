"""Reducers whose uplink turns out slower than was known, found while the round is open (decision 23).

Each average leaves its reducer once for every receiver: where its uplink became slow, all wait for that.
"""

from statistics import median

from peer_agent.protocol.coordinator.round.attempt import chunks_of
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.deadlines import coming_s, waiting_s
from peer_agent.protocol.identifiers import PeerId

UNSENT_S, UNSENT = 1.5, 1.5  # seconds of its averages, or times what chunks are waited for, that wait for its uplink
WITNESSES = 2  # other reducers at least, at all of which its own gradient is the last
WELL_BEHIND = 1.5  # times how far behind the plan those of others are where it reduces


def with_a_slow_uplink(state: RunState, round_: Round) -> set[PeerId]:
    """Those of which all leaves far later than by plan, while of another it does not, with much of their part left."""
    if round_.plan is None or not round_.plan.sigma:
        return set()
    able = {member.peer for member in state.listening.values() if state.may_reduce(member)} - round_.hung
    whole_s, planned, open_ = coming_s(round_.plan), chunks_of(round_), chunks_of(round_, round_.done)
    unsent_s = {peer: whole_s * round_.unsent.get(peer, 0) / chunks for peer, chunks in planned.items()}
    too_late_s = max(UNSENT_S, UNSENT * waiting_s(round_.plan))
    slow = {peer for peer, seconds in unsent_s.items() if seconds > too_late_s} | last_everywhere(round_)
    if not any(unsent_s[peer] < too_late_s / 2 for peer in able.intersection(planned) - slow):
        return set()  # the plan is wrong for all
    return {peer for peer in slow.intersection(open_) if whole_s * open_[peer] / planned[peer] > waiting_s(round_.plan)}


def last_everywhere(round_: Round) -> set[PeerId]:
    """Reducers whose own gradient is the last at all others, and far behind the plan, while most come to them in time.

    The others are held back to where it is (decision 19), so that by its deadlines it is not late for long.
    """
    assert round_.plan is not None
    found = set()
    for slot, entry in enumerate(round_.slots):
        elsewhere = [reducer for reducer in round_.progress if reducer != entry.peer]
        is_last = all(_is_last(round_, reducer, slot) for reducer in elsewhere)
        here = [_behind_s(round_, [entry.peer], other) for other in _awaited(round_, entry.peer) if other != slot]
        if len(elsewhere) < WITNESSES or slot in round_.dropped or not here or not is_last:
            continue
        if _behind_s(round_, elsewhere, slot) > max(waiting_s(round_.plan), WELL_BEHIND * median(here)):
            found.add(entry.peer)
    return found


def _awaited(round_: Round, reducer: PeerId) -> set[int]:
    """Slots of which it has told, but for those that were dropped."""
    return round_.progress.get(reducer, {}).keys() - round_.dropped


def _is_last(round_: Round, reducer: PeerId, slot: int) -> bool:
    moved = round_.progress[reducer]
    return slot in moved and moved[slot].chunks <= min(moved[other].chunks for other in _awaited(round_, reducer))


def _behind_s(round_: Round, reducers: list[PeerId], slot: int) -> float:
    """How far a slot is behind the plan at these reducers together, by what they told last."""
    assert round_.plan is not None
    expected = sum(chunks_of(round_).get(reducer, 0) for reducer in reducers)
    came = sum(round_.progress[reducer][slot].chunks for reducer in reducers)
    since_s = max(round_.reported[reducer] for reducer in reducers) - round_.planned_at
    return since_s - coming_s(round_.plan) * came / max(expected, 1)
