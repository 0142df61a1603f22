"""Requests of people and keepers in the database since a host's last look, and what the host writes there."""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple

from django.db import transaction
from django.utils import timezone

from accounts.models import Machine
from coordination import presence, snapshots, store
from coordination.presence import Before, OnlinePeer
from notices import outbox
from notices.models import Event
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import codes
from peer_agent.protocol.identifiers import PeerId
from runs.access import participants
from runs.models import Run

STOPPED_AFTER = timedelta(minutes=5)  # without the machine
NEEDED_AFTER = timedelta(minutes=15)  # without trainers
OLD = timedelta(hours=1)  # an older picture does not tell when a machine stopped
COMPUTING = (Role.TRAINER.value, Role.AUXILIARY.value)


# Messages about stopped machines and runs that need volunteers, withdrawn if they recover in time


def is_needed(state: RunState) -> bool:
    """Return True if the run would go on with volunteers: it has no trainer and is neither paused nor finished."""
    return state.goal != "paused" and not state.finished and not any(True for _ in state.trainers())


def tell_need(run: Run, *, needed: bool) -> None:
    """Announce that the run needs volunteers, or withdraw that; in the transaction that writes its presence."""
    if not needed:
        outbox.withdraw(Event.NEEDED, [run.run_id])
        return
    now = _now(run)
    path = f"/runs/{now.slug}/"
    outbox.note(Event.NEEDED, participants(now), about=now.run_id, title=now.title, path=path, after=NEEDED_AFTER)


def tell_stopped(run: Run, before: Before, members: Iterable[OnlinePeer], *, left: Collection[PeerId]) -> None:
    """Notify owners of machines that stopped, except those that `left` on purpose; withdraw notices of those back."""
    was, here = _computing(before.members), _computing(members)
    if back := here - was:
        outbox.withdraw(Event.STOPPED, [_about(run, peer) for peer in back])
    stopped = was - here - set(left)
    if not stopped or before.at is None or timezone.now() - before.at > OLD:
        return
    told = Machine.objects.filter(pk__in=stopped, revoked_at=None, person__notice_choices__event=Event.STOPPED)
    now = _now(run)
    for machine in told.distinct():
        outbox.note(
            Event.STOPPED,
            [machine.person_id],
            about=_about(run, machine.peer_id),
            title=now.title,
            machine=machine.name,
            path="/machines/",
            after=STOPPED_AFTER,
        )


def _computing(members: Iterable[OnlinePeer]) -> set[PeerId]:
    return {PeerId(member.peer) for member in members if member.role in COMPUTING}


def _about(run: Run, peer: PeerId) -> str:
    return f"{run.run_id}/{peer}"


def _now(run: Run) -> Run:
    """Return the run as its organizer has it now; a host's copy is as old as its claim."""
    return Run.objects.only("slug", "title", "visibility", "organizer").get(pk=run.pk)


class Asked(NamedTuple):
    """The facts that a look writes and asks about, copied from the state before a thread uses them.

    `left`: peers that left on purpose. `needs`, `needed`: whether the run needs volunteers, and did at the last look.
    """

    shown: presence.Shown
    trainers: list[PeerId]
    members: list[PeerId]
    left: frozenset[PeerId]
    needs: bool
    needed: bool | None


class Wishes(NamedTuple):
    """Requests of people and keepers. `unwanted`: machines to disconnect, each with its error's number."""

    directed: e.Directed
    news: snapshots.News
    unwanted: dict[PeerId, str]


def asked_of(
    state: RunState, unwanted: Mapping[PeerId, str], *, left: Collection[PeerId], needed: bool | None
) -> Asked:
    """Return the facts for a look. Machines that were disconnected stay in it until people want otherwise."""
    trainers = {member.peer for member in state.trainers()}
    trainers |= {peer for peer, code in unwanted.items() if code == codes.REMOVED}
    members = {*state.members} | {peer for peer, code in unwanted.items() if code == codes.REVOKED}
    gone = frozenset({*left, *unwanted})
    needs = is_needed(state)
    return Asked(presence.shown_of(state), sorted(trainers), sorted(members), gone, needs, needed)


def look(run: Run, asked: Asked) -> Wishes:
    """Write the host's picture and read requests. Raises DatabaseError."""
    _show(run, asked)
    unwanted = dict.fromkeys(store.uninvited(run, asked.trainers), codes.REMOVED)
    unwanted |= dict.fromkeys(store.revoked(asked.members), codes.REVOKED)
    return Wishes(store.directed(run), snapshots.news_of(run), unwanted)


@transaction.atomic
def _show(run: Run, asked: Asked) -> None:
    before = presence.show(run, asked.shown)
    tell_stopped(run, before, asked.shown.members, left=asked.left)
    if asked.needs is not asked.needed:
        tell_need(run, needed=asked.needs)
