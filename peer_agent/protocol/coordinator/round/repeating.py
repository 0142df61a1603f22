"""Repeat plans, drops and voids that a peer has not received, as its reports show.

Reports and heartbeats say how far a peer has heard of the round. If that is less than the coordinator has told it, the
coordinator repeats the message. A cut is repeated halfway through the wait for offers (`offers.repeat_cut`), because
that wait may be shorter than the time between two reports.
"""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.round.attempt import chunks_of
from peer_agent.protocol.coordinator.round.planning import announce, drop_message
from peer_agent.protocol.coordinator.state import Member, Phase, Round, RunState
from peer_agent.protocol.timing import ROUND_TRIP_S

AGAIN_S = ROUND_TRIP_S / 2  # seconds for a message to arrive and show in a report


def repeat(state: RunState, member: Member, heard: m.Heard | None, *, reduces: bool = False) -> list[Command]:
    """Repeat what a peer has not heard. `reduces`: the report is a reducer's, not a trainer's. O(slots)."""
    if state.now - member.repeated_at < AGAIN_S:
        return []
    commands = _missed(state, member, heard, reduces=reduces)
    if commands:
        member.repeated_at = state.now
    return commands


def _missed(state: RunState, member: Member, heard: m.Heard | None, *, reduces: bool) -> list[Command]:
    round_ = state.round
    is_here = heard is not None and (heard.step, heard.fence) == (state.step, state.fence)
    if round_ is None:
        is_over = is_here and state.now - state.accumulating_since >= AGAIN_S
        return [_void_of(state, member, heard)] if is_over and heard is not None else []
    if state.phase is not Phase.REDUCE or round_.plan is None or not round_.is_planned:
        return []
    if not is_here or heard is None or heard.attempt < round_.attempt or not heard.has_plan:
        is_told = state.now - round_.planned_at >= AGAIN_S
        return _plan_for(state, round_, round_.plan, member) if is_told and _takes_part(round_, member) else []
    dropped = sorted(round_.dropped if reduces else _own(round_, member))
    return [drop_message(state, round_, slot) for slot in dropped] if heard.dropped < len(dropped) else []


def _void_of(state: RunState, member: Member, heard: m.Heard) -> Send:
    why = "the round ended, but this machine did not hear of it"
    void = m.Void(run=state.run, step=state.step, fence=state.fence, attempt=heard.attempt, round=0, reason=why)
    return Send((member.peer,), void)


def _plan_for(state: RunState, round_: Round, plan: m.Plan, member: Member) -> list[Command]:
    listeners = m.Listeners(run=state.run, listeners=state.listeners())
    drops = (drop_message(state, round_, slot) for slot in sorted(round_.dropped))
    return [announce(plan, [member]), Send((member.peer,), listeners), *drops]


def _takes_part(round_: Round, member: Member) -> bool:
    return member.peer in chunks_of(round_) or any(slot.peer == member.peer for slot in round_.slots)


def _own(round_: Round, member: Member) -> set[int]:
    return {slot for slot in round_.dropped if round_.slots[slot].peer == member.peer}
