"""Reducers whose uplink turns out slower than was known, found while the round is open (decision 23).

Each average leaves its reducer once for every receiver: where its uplink became slow, all wait for that.
"""

from peer_agent.protocol.coordinator.round.attempt import chunks_of, has_quorum
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.deadlines import coming_s, waiting_s
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included

UNSENT_S, UNSENT = 0.75, 0.6  # seconds of its averages, or part of what chunks are waited for, that wait to leave
TOLD_S = 2.5  # ago, at most, that a reducer has told how far it is: it does so each second


def with_a_slow_uplink(state: RunState, round_: Round) -> set[PeerId]:
    """Those whose averages leave far later than by plan, by their own word, while another's do not.

    What is left of their part has to be worth an attempt, and the others to be enough for all that it would do anew.
    """
    if round_.plan is None or not round_.plan.sigma or not any(round_.unsent.values()):
        return set()
    able = {member.peer for member in state.listening.values() if state.may_reduce(member)} - round_.hung
    whole_s, waits_s, planned = coming_s(round_.plan), waiting_s(round_.plan), chunks_of(round_)
    told = {peer for peer in round_.unsent.keys() & planned if state.now - round_.reported[peer] <= TOLD_S}
    unsent_s = {peer: whole_s * round_.unsent[peer] / planned[peer] for peer in told}
    too_late_s = max(UNSENT_S, UNSENT * waits_s)
    if not any(unsent_s[peer] < too_late_s / 2 for peer in able & told):
        return set()  # the plan is wrong for all
    slow = {peer for peer, seconds in unsent_s.items() if seconds > too_late_s}
    left = {peer: planned[peer] - averaged_by(round_, peer) for peer in slow}
    found = {peer for peer in slow if whole_s * left[peer] / planned[peer] > waits_s}
    return found if found and _may_begin_anew(state, round_) else set()


def averaged_by(round_: Round, reducer: PeerId) -> int:
    """Chunks that it has averaged, by what it told of the slots that are waited for."""
    here = round_.progress.get(reducer, {})
    waited_for = (slot for slot in range(len(round_.slots)) if slot not in round_.dropped)
    return min((here[slot].chunks if slot in here else 0 for slot in waited_for), default=0)


def _may_begin_anew(state: RunState, round_: Round) -> bool:
    """Whether those who are here could do every chunk: some that are done lie on no log, and were done with others."""
    assert round_.plan is not None
    here = (number for number, slot in enumerate(round_.slots) if slot.peer in state.members)
    left = tuple(number for number in here if number not in round_.dropped)
    return has_quorum(round_.slots, Included(0, state.grid.chunks, left))
