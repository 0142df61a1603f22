"""What people and keepers wrote into the database since a host looked last, and what the host shows and tells there."""

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

STOPPED_AFTER = timedelta(minutes=5)  # that a machine is away
NEEDED_AFTER = timedelta(minutes=15)  # that nobody trains
OLD = timedelta(hours=1)  # a picture of before that says nothing of what stopped when
COMPUTING = (Role.TRAINER.value, Role.AUXILIARY.value)


# Who is told that a machine stopped, or that a run needs volunteers; withdrawn where it comes back soon enough


def is_needed(state: RunState) -> bool:
    """Whether volunteers would make it go on."""
    return state.goal != "paused" and not state.finished and not any(True for _ in state.trainers())


def tell_need(run: Run, *, needed: bool) -> None:
    """Nobody trains any more, or somebody does again: in the transaction that shows it."""
    if not needed:
        outbox.withdraw(Event.NEEDED, [run.run_id])
        return
    now = _now(run)
    path = f"/runs/{now.slug}/"
    outbox.note(Event.NEEDED, participants(now), about=now.run_id, title=now.title, path=path, after=NEEDED_AFTER)


def tell_stopped(run: Run, before: Before, members: Iterable[OnlinePeer], *, left: Collection[PeerId]) -> None:
    """Machines that were here a moment ago and are not now, but for those that `left` on purpose; and who is back."""
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
    """As its organizer has it now: a host knows it as it was when it was claimed."""
    return Run.objects.only("slug", "title", "visibility", "organizer").get(pk=run.pk)


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
    needs = is_needed(state)
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
    tell_stopped(run, before, asked.shown.members, left=asked.left)
    if asked.needs is not asked.needed:
        tell_need(run, needed=asked.needs)
