"""Find the listening members that may reduce because other members can reach them (rule 27).

Each peer claims which listeners it reaches; relays always count as reachable. Someone whose machines miss more than a
quarter of the listeners has bad links or is lying. Such a person's claims alone cannot exclude a listener. Otherwise,
one person could exclude every listener.
"""

from collections.abc import Iterable, Sequence

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command
from peer_agent.protocol.coordinator.state import Member, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId

EXCLUDED = 4  # one person's claims can exclude at most a quarter of the listeners, but always one


def take_reaches(member: Member, reaches: m.Reaches) -> list[Command]:
    """Record the listeners that the member has data links to. `look_at_reach` evaluates them later."""
    member.reaches, member.measures = frozenset(reaches.listeners), True
    return []


def look_at_reach(state: RunState) -> None:
    """Update the set of listeners, besides relays, that may reduce. Takes O(members x listeners) time."""
    told = {listener.peer for listener in state.listeners()}
    others = (member for member in state.listening.values() if member.role is not Role.RELAY and member.reduces)
    listening = [member for member in others if member.peer in told]
    keepers = [member for member in state.members.values() if member.keeps_log] if listening else []
    state.reached = reached(listening, state.awake(), keepers) if listening else set()


def reached(listeners: Sequence[Member], trainers: Iterable[Member], keepers: Sequence[Member]) -> set[PeerId]:
    """Return listeners reached by at least half of all people, by everyone whose claims count, and by a log keeper."""
    missed = _missed({listener.peer for listener in listeners}, trainers)
    counted = [peers for peers in missed.values() if len(peers) <= max(1, len(listeners) // EXCLUDED)]
    return {
        listener.peer
        for listener in listeners
        if not any(listener.peer in peers for peers in counted)
        and 2 * sum(listener.peer in peers for peers in missed.values()) <= len(missed)
        and (listener.keeps_log or any(listener.peer in keeper.reaches for keeper in keepers))
    }


def _missed(listeners: set[PeerId], trainers: Iterable[Member]) -> dict[str, set[PeerId]]:
    """Return, by person, the listeners that at least one of the person's machines does not reach."""
    missed: dict[str, set[PeerId]] = {}
    for trainer in trainers:
        missed.setdefault(trainer.person, set()).update(listeners - trainer.reaches - {trainer.peer})
    return missed
