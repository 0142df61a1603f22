"""Who is told that a machine stopped, or that a run needs volunteers; withdrawn where it comes back soon enough."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from django.utils import timezone

from accounts.models import Machine
from coordination.presence import Before, Seen
from notices import outbox
from notices.models import Event
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from runs.access import participants
from runs.models import Run

STOPPED_AFTER = timedelta(minutes=5)  # that a machine is away
NEEDED_AFTER = timedelta(minutes=15)  # that nobody trains
OLD = timedelta(hours=1)  # a picture of before that says nothing of what stopped when
COMPUTING = (Role.TRAINER.value, Role.AUXILIARY.value)


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


def tell_stopped(run: Run, before: Before, members: Iterable[Seen], *, left: Collection[PeerId]) -> None:
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


def _computing(members: Iterable[Seen]) -> set[PeerId]:
    return {PeerId(member["peer"]) for member in members if member["role"] in COMPUTING}


def _about(run: Run, peer: PeerId) -> str:
    return f"{run.run_id}/{peer}"


def _now(run: Run) -> Run:
    """As its organizer has it now: a host knows it as it was when it was claimed."""
    return Run.objects.only("slug", "title", "visibility", "organizer").get(pk=run.pk)
