"""The outline of the latest round, shown on the site's pages. It lasts from the plan to the end of the round."""

from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Participant, outline_of


def begin_outline(state: RunState, round_: Round) -> None:
    """Start the outline of a newly planned attempt. The duration counts from the round's first attempt."""
    assert round_.plan is not None
    began_at = state.outline.began_at if state.outline is not None and round_.attempts > 1 else state.now
    state.outline = outline_of(
        round_.plan,
        [slot.peer for slot in round_.slots],
        round_.limits,
        named=lambda peer: _participant(state, round_, peer),
        measured=state.links.capacities,
        began_at=began_at,
    )


def _participant(state: RunState, round_: Round, peer: PeerId) -> Participant:
    """Return a peer's current person and machine names, or those at the cut if the peer has left."""
    member = state.members.get(peer)
    if member is not None:
        return Participant(member.person, member.machine, peer, member.role.value)
    person, machine = round_.persons.get(peer, ("a volunteer", "a machine"))
    return Participant(person, machine, peer, "")


def end_outline(state: RunState, *, is_void: bool = False) -> None:
    """Record in the outline that the open round has all its averages, or is void."""
    if state.outline is not None and state.round is not None and state.round.plan is not None:
        state.outline.took_s = None if is_void else state.now - state.outline.began_at
        state.outline.is_void = is_void
