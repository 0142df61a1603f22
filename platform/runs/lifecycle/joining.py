"""Requests to join a by-request run: a person sends or withdraws one, and a manager accepts or declines it.

Anyone whose request is accepted becomes a member.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from accounts.models import Person
from notices import outbox
from notices.models import Event
from peer_agent.protocol.errors import Problem
from runs import quotas
from runs.access import is_removed, takes_part
from runs.lifecycle.membership import held_run
from runs.models import JoinRequest, Member, Run
from runs.models.run import LONGEST_MESSAGE
from runs.states import LIVE
from runs.timeline import MEMBER, add_action

MOST_OF_PERSON, MOST_OF_RUN = 20, 500  # most requests waiting
AGAIN_AFTER = timedelta(days=7)  # how long after a declined request a person may ask again
GROUPED = timedelta(minutes=5)  # one notice to managers covers all requests in this time; at most one an hour
TAKING = (Run.State.PREPARING, *LIVE)


class Stage(StrEnum):
    PART = "part"  # the person already takes part or needs no permission
    CLOSED = "closed"  # the run currently accepts no requests
    REMOVED = "removed"
    WAITING = "waiting"
    DECLINED = "declined"
    FREE = "free"  # the person may ask


class Standing(NamedTuple):
    """A person's stage in joining a run, their request if any, and when they may ask again."""

    stage: Stage
    request: JoinRequest | None = None
    again_at: datetime | None = None


def takes_requests(run: Run) -> bool:
    return run.visibility == Run.Visibility.REQUEST and run.state in TAKING


def waiting_in(run: Run) -> QuerySet[JoinRequest]:
    waiting = run.join_requests.filter(declined_at=None).select_related("person")
    return waiting if takes_requests(run) else waiting.none()


def standing_of(run: Run, person: Person | None, now: datetime | None = None) -> Standing:
    """Return a person's progress in joining a run. A visitor who is not logged in counts as free to ask."""
    if run.visibility != Run.Visibility.REQUEST or (person is not None and takes_part(run, person)):
        return Standing(Stage.PART)
    if not takes_requests(run):
        return Standing(Stage.CLOSED)
    if person is None:
        return Standing(Stage.FREE)
    if is_removed(run, person):
        return Standing(Stage.REMOVED)
    request = run.join_requests.filter(person=person).first()
    if request is None:
        return Standing(Stage.FREE)
    if request.declined_at is None:
        return Standing(Stage.WAITING, request)
    again_at = request.declined_at + AGAIN_AFTER
    return Standing(Stage.DECLINED, request, again_at) if again_at > (now or timezone.now()) else Standing(Stage.FREE)


@transaction.atomic
def ask(*, run: Run, person: Person, message: str = "") -> JoinRequest:
    """Ask to become a member of a run, or change the message of a waiting request.

    Raises Problem E411, with the reason, if the person may not ask now.
    """
    quotas.held(person)
    now = held_run(run.pk)
    if (reason := _why_not(now, person)) is not None:
        raise Problem.of("E411", reason=reason)
    now.join_requests.filter(declined_at__lte=timezone.now() - AGAIN_AFTER).delete()
    facts = {"message": message[:LONGEST_MESSAGE]}
    request, is_new = JoinRequest.objects.update_or_create(run=now, person=person, defaults=facts)
    if is_new:
        _tell_managers(now)
    return request


def _why_not(run: Run, person: Person) -> str | None:
    standing = standing_of(run, person)
    match standing.stage:
        case Stage.WAITING:
            return None
        case Stage.PART:
            return "you can take part already"
        case Stage.CLOSED:
            return "this run takes no requests now"
        case Stage.REMOVED:
            return "you were removed from this run"
        case Stage.DECLINED:
            return f"a request of yours was declined; you can ask again from {standing.again_at:%d %b %Y, %H:%M} UTC"
    if waiting_in(run).count() >= MOST_OF_RUN:
        return f"{MOST_OF_RUN} requests are waiting for an answer there already"
    if waiting_of(person).count() >= MOST_OF_PERSON:
        return f"{MOST_OF_PERSON} requests of yours are waiting for an answer already"
    return None


def waiting_of(person: Person) -> QuerySet[JoinRequest]:
    """Return the person's requests that are waiting for an answer and may still get one."""
    return person.join_requests.filter(declined_at=None, run__state__in=TAKING, run__visibility=Run.Visibility.REQUEST)


@transaction.atomic
def take_back(*, run: Run, person: Person) -> None:
    """Withdraw a person's waiting request. A declined request stays declined."""
    now = held_run(run.pk)
    if now.join_requests.filter(person=person, declined_at=None).delete()[0]:
        _withdraw_if_none(now)


@transaction.atomic
def accept(*, request: JoinRequest, by: Person | None = None) -> None:
    """Make the requester a member, unless the request was withdrawn or answered before.

    Raises PermissionDenied if `by` has no role in the run.
    """
    run, person = _answerable(request, by), request.person
    if not JoinRequest.objects.filter(pk=request.pk, declined_at=None).delete()[0] or is_removed(run, person):
        return
    Member.objects.get_or_create(run=run, person=person)
    action = f"accepted {person.username}'s request to join."
    add_action(run=run, kind=MEMBER, action=action, by=by, on=person)
    _tell(Event.ACCEPTED, run, person)


@transaction.atomic
def decline(*, request: JoinRequest, by: Person | None = None) -> None:
    """Decline a waiting request and delete its message. Raises PermissionDenied if `by` has no role."""
    run, person = _answerable(request, by), request.person
    waiting = JoinRequest.objects.filter(pk=request.pk, declined_at=None)
    if not waiting.update(declined_at=timezone.now(), message=""):
        return
    action = f"declined {person.username}'s request to join."
    add_action(run=run, kind=MEMBER, action=action, by=by, on=person, is_internal=True)
    _tell(Event.DECLINED, run, person)


def _answerable(request: JoinRequest, by: Person | None) -> Run:
    """Lock and return the run that a request is for. Raises PermissionDenied if `by` has no role in it."""
    run = held_run(request.run_id)
    if run.role_of(by or run.organizer) is None:
        raise PermissionDenied
    return run


def _tell(event: Event, run: Run, person: Person) -> None:
    outbox.note(event, [person.pk], about=run.run_id, title=run.title, path=f"/runs/{run.slug}/")
    _withdraw_if_none(run)


def _tell_managers(run: Run) -> None:
    """Notify managers, at most once an hour. The notice names no requester, so it remains true until it is read."""
    now = timezone.now()
    people = [run.organizer_id, *run.roles.exclude(accepted_at=None).values_list("person", flat=True)]
    path, about = f"/runs/{run.slug}/manage/#requests", _about(run, now.hour)
    outbox.note(Event.REQUEST, people, about=about, title=run.title, path=path, after=GROUPED, now=now)


def _withdraw_if_none(run: Run) -> None:
    if not waiting_in(run).exists():
        outbox.withdraw(Event.REQUEST, [_about(run, hour) for hour in range(24)])


def _about(run: Run, hour: int) -> str:
    return f"{run.run_id}/{hour}"
