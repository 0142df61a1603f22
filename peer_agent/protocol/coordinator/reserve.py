"""What a volunteer's household keeps of its uplink: plans do not count on it, and the agent is told what is left."""

from collections.abc import Iterator

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.learning import budget_bps
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.state import Member, RunState

CHANGED = 0.02  # of its rate: by less an agent is not told anew


def upload_bps(state: RunState, member: Member, *, hope: float = 1.0) -> float:
    """Bytes per second that a plan may count on; 0: nothing is known."""
    return budget_bps(state.capacities, (member.peer, "up"), member.reserve, hope=hope)


def tell_rates(state: RunState) -> Iterator[Command]:
    """How fast each may send, where that is measured and has changed. A least bound would hold it there for ever."""
    for member in state.members.values():
        known = state.capacities.get((member.peer, "up"))
        if not member.reserve or known is None or (known.is_floor and not known.is_tried):
            continue
        rate = upload_bps(state, member)
        if abs(rate - member.uplink_told) > CHANGED * rate:
            member.uplink_told = rate
            yield Send((member.peer,), m.Uplink(run=state.run, bytes_per_s=int(rate)))
