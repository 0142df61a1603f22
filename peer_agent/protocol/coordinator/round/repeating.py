"""Repeat plans, drops and voids that a peer has not received, as its reports show.

Reports and heartbeats say how far a peer has heard of the round. If that is less than the coordinator has told it, the
coordinator repeats the message. A cut is repeated halfway through the wait for offers (`offers.repeat_cut`), because
that wait may be shorter than the time between two reports.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.round.attempt import chunks_of
from peer_agent.protocol.coordinator.round.planning import announce
from peer_agent.protocol.coordinator.state import Member, Phase, Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import ROUND_TRIP_S, backoff_s

AGAIN_S = ROUND_TRIP_S / 2  # seconds for a message to arrive and show in a report; twice as long after each repetition


def repeat(state: RunState, member: Member, heard: m.Heard | None, *, reduces: bool = False) -> list[Command]:
    """Repeat what a peer has not heard. `reduces`: the report is a reducer's, not a trainer's. O(slots)."""
    at_s, *place, count = member.repeated
    count = count if place == [state.step, state.attempt] else 0
    if state.now - at_s < backoff_s(AGAIN_S, count):
        return []
    commands = _missed(state, member, heard, reduces=reduces)
    if commands:
        member.repeated = state.now, state.step, state.attempt, count + 1
    return commands


def _missed(state: RunState, member: Member, heard: m.Heard | None, *, reduces: bool) -> list[Command]:
    round_ = state.round
    is_here = heard is not None and (heard.step, heard.fence) == (state.step, state.fence)
    if round_ is None:
        is_over = is_here and state.now - state.accumulating_since >= AGAIN_S
        return [_void_of(state, member, heard)] if is_over and heard is not None else []
    if state.phase is not Phase.REDUCE or round_.plan is None or not round_.is_planned:
        return []
    has_plan = is_here and heard is not None and heard.attempt >= round_.attempt and heard.has_plan
    if not has_plan and state.now - round_.planned_at < AGAIN_S:
        return []
    if not (member.peer in chunks_of(round_) if reduces else _contributes(round_, member)):
        return []
    if not has_plan:
        return _plan_for(state, round_, round_.plan, member)
    dropped = sorted(round_.dropped if reduces else _own(round_, member.peer))
    is_short = heard is not None and heard.dropped < len(dropped)
    return [_drop_for(state, round_, slot, member.peer) for slot in dropped] if is_short else []


def _contributes(round_: Round, member: Member) -> bool:
    """Return True if the round has the member's offer, and the member still has its accumulator."""
    offer = round_.offers.get(member.peer)
    return offer is not None and offer.accumulator == member.accumulator


def _void_of(state: RunState, member: Member, heard: m.Heard) -> Send:
    why = "the round ended, but this machine did not hear of it"
    void = m.Void(run=state.run, step=state.step, fence=state.fence, attempt=heard.attempt, round=0, reason=why)
    return Send((member.peer,), void)


def _plan_for(state: RunState, round_: Round, plan: m.Plan, member: Member) -> list[Command]:
    listeners = m.Listeners(run=state.run, listeners=state.listeners())
    drops = (_drop_for(state, round_, slot, member.peer) for slot in sorted(round_.dropped))
    return [announce(plan, [member]), Send((member.peer,), listeners), *drops]


def _drop_for(state: RunState, round_: Round, slot: int, peer: PeerId) -> Send:
    message = m.Drop(run=state.run, step=state.step, fence=state.fence, attempt=round_.attempt, slot=slot)
    return Send((peer,), message)


def _own(round_: Round, peer: PeerId) -> set[int]:
    return {slot for slot in round_.dropped if round_.slots[slot].peer == peer}
