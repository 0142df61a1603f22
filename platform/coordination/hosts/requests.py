"""A host's regular database poll. It reads people's requests and writes the run's state for the pages."""

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

STOPPED_AFTER = timedelta(minutes=5)  # when to notify the owner of a stopped machine
NEEDED_AFTER = timedelta(minutes=15)  # how long a run is without trainers before people are notified
OLD = timedelta(hours=1)  # an older presence record cannot show when a machine stopped
COMPUTING = (Role.TRAINER.value, Role.AUXILIARY.value)


# Notices about stopped machines and about runs that need volunteers. They are withdrawn if the machine or run recovers
# in time.


def is_needed(state: RunState) -> bool:
    """Return True if the run needs volunteers because it has no trainer and is neither paused nor finished."""
    return state.goal != "paused" and not state.finished and not any(True for _ in state.trainers())


def tell_need(run: Run, *, needed: bool) -> None:
    """Notify people that the run needs volunteers, or withdraw those notices.

    Call this in the transaction of `presence.show`.
    """
    if not needed:
        outbox.withdraw(Event.NEEDED, [run.run_id])
        return
    now = _now(run)
    path = f"/runs/{now.slug}/"
    outbox.note(Event.NEEDED, participants(now), about=now.run_id, title=now.title, path=path, after=NEEDED_AFTER)


def tell_stopped(run: Run, before: Before, members: Iterable[OnlinePeer], *, left: Collection[PeerId]) -> None:
    """Notify the owners of machines that stopped, and withdraw notices about machines that are back.

    `left` lists machines that left on purpose, whose owners are not notified.
    """
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
    """Return the run's current row, because the host's own copy dates from when it claimed the run."""
    return Run.objects.only("slug", "title", "visibility", "organizer").get(pk=run.pk)


class Asked(NamedTuple):
    """The facts that a poll writes or checks, copied from the coordinator's state for use in a thread.

    `left` lists peers that left on purpose or were turned away. `needs` is True if the run needs volunteers now;
    `needed` is True if it did at the last poll, and None before the first poll.
    """

    shown: presence.Shown
    trainers: list[PeerId]
    members: list[PeerId]
    left: frozenset[PeerId]
    needs: bool
    needed: bool | None


class Wishes(NamedTuple):
    """The results of a poll: people's requests, and news about snapshots.

    `unwanted` contains the machines to disconnect, each with the error code to send.
    """

    directed: e.Directed
    news: snapshots.News
    unwanted: dict[PeerId, str]


def asked_of(
    state: RunState, unwanted: Mapping[PeerId, str], *, left: Collection[PeerId], needed: bool | None
) -> Asked:
    """Return the facts for a poll.

    They include machines that were turned away, because people may have admitted them again since.
    """
    trainers = {member.peer for member in state.trainers()}
    trainers |= {peer for peer, code in unwanted.items() if code == codes.REMOVED}
    members = {*state.members} | {peer for peer, code in unwanted.items() if code == codes.REVOKED}
    gone = frozenset({*left, *unwanted})
    needs = is_needed(state)
    return Asked(presence.shown_of(state), sorted(trainers), sorted(members), gone, needs, needed)


def look(run: Run, asked: Asked) -> Wishes:
    """Write the run's presence for the pages, and read people's requests. Raises DatabaseError."""
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
