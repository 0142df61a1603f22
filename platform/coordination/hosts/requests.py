"""What people and keepers wrote into the database since a host looked last, and what the host shows there."""

from collections.abc import Mapping
from typing import NamedTuple

from coordination import presence, snapshots, store
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.identifiers import PeerId
from runs.models import Run

REVOKED, UNINVITED = "E214", "E324"


class Asked(NamedTuple):
    """What a look shows and asks about, taken from a state before a thread has it."""

    shown: presence.Shown
    trainers: list[PeerId]
    members: list[PeerId]


class Wishes(NamedTuple):
    """What people and keepers want. `unwanted`: machines to cut off, each with the number of the error it is told."""

    directed: e.Directed
    news: snapshots.News
    unwanted: dict[PeerId, str]


def asked_of(state: RunState, unwanted: Mapping[PeerId, str]) -> Asked:
    """Whoever is here, and whoever was cut off: they stay so until people want it otherwise."""
    trainers = {member.peer for member in state.trainers()} | {p for p, code in unwanted.items() if code == UNINVITED}
    members = {*state.members} | {p for p, code in unwanted.items() if code == REVOKED}
    return Asked(presence.shown_of(state), sorted(trainers), sorted(members))


def look(run: Run, asked: Asked) -> Wishes:
    """Show, and ask. Raises DatabaseError."""
    presence.show(run, asked.shown)
    unwanted = dict.fromkeys(store.uninvited(run, asked.trainers), UNINVITED)
    unwanted |= dict.fromkeys(store.revoked(asked.members), REVOKED)
    return Wishes(store.directed(run), snapshots.news_of(run), unwanted)
