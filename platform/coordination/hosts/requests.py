"""What people and keepers wrote into the database since a host looked last, and what the host shows there."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from django.db import transaction

from coordination import absences, presence, snapshots, store
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.errors import codes
from peer_agent.protocol.identifiers import PeerId
from runs.models import Run


class Asked(NamedTuple):
    """What a look shows and asks about, taken from a state before a thread has it.

    `left`: who went on purpose. `needs`: whether the run needs volunteers, `needed` whether it did at the last look.
    """

    shown: presence.Shown
    trainers: list[PeerId]
    members: list[PeerId]
    left: frozenset[PeerId]
    needs: bool
    needed: bool | None


class Wishes(NamedTuple):
    """What people and keepers want. `unwanted`: machines to cut off, each with the number of the error it is told."""

    directed: e.Directed
    news: snapshots.News
    unwanted: dict[PeerId, str]


def asked_of(
    state: RunState, unwanted: Mapping[PeerId, str], *, left: Collection[PeerId], needed: bool | None
) -> Asked:
    """Whoever is here, and whoever was cut off: they stay so until people want it otherwise."""
    trainers = {member.peer for member in state.trainers()}
    trainers |= {peer for peer, code in unwanted.items() if code == codes.REMOVED}
    members = {*state.members} | {peer for peer, code in unwanted.items() if code == codes.REVOKED}
    gone = frozenset({*left, *unwanted})
    needs = absences.is_needed(state)
    return Asked(presence.shown_of(state), sorted(trainers), sorted(members), gone, needs, needed)


def look(run: Run, asked: Asked) -> Wishes:
    """Show, and ask. Raises DatabaseError."""
    _show(run, asked)
    unwanted = dict.fromkeys(store.uninvited(run, asked.trainers), codes.REMOVED)
    unwanted |= dict.fromkeys(store.revoked(asked.members), codes.REVOKED)
    return Wishes(store.directed(run), snapshots.news_of(run), unwanted)


@transaction.atomic
def _show(run: Run, asked: Asked) -> None:
    """Who is told of what changed is written with it."""
    before = presence.show(run, asked.shown)
    absences.tell_stopped(run, before, asked.shown.members, left=asked.left)
    if asked.needs is not asked.needed:
        absences.tell_need(run, needed=asked.needs)
