"""Letters that a host's inbox had no room for are told of: once for each peer that said too much."""

import logging

from coordination.channel_layer.process import Inbox
from peer_agent.protocol.coordinator.events import Note
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.identifiers import PeerId

log = logging.getLogger(__name__)

MOST = 100  # peers that the timeline names; the log has them all


class LostWords:
    """What peers of one host may not have heard."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._named: set[str] = set()

    def notes(self, state: RunState) -> list[Note]:
        """What people are told of since the last look."""
        found = []
        for peer, count in self.inbox.told().items():
            member = state.members.get(PeerId(peer))
            name = member.name if member is not None else peer[:8]
            log.warning("run %s: %s letters of %s were lost, since too much waits", state.slug, count, name)
            if peer not in self._named and len(self._named) < MOST:
                self._named.add(peer)
                found.append(Note("lost words", f"{name} says more than the site takes; some of it was lost"))
        return found
