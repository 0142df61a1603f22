"""What the site says, as the event that it is for a trainer: the one place where plans and records are opened."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.trainer.events import CommitHeard, Event, Heard, PlanHeard
from peer_agent.protocol.trainer.opened import open_commit, open_plan


def heard(message: m.TO_PEER, site_key: bytes, me: PeerId) -> Event:
    """Raises Problem E218 where the site has not signed what it says it has."""
    match message:
        case m.Planned():
            return PlanHeard(open_plan(message, site_key, me))
        case m.Commit():
            return CommitHeard(open_commit(message, site_key, me))
        case _:
            return Heard(message)
