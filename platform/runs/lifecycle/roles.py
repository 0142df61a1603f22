"""Co-organizers and moderators, who are invited by name.

Anyone who accepts a role becomes a member, and stays one after the role ends.
"""

from collections.abc import Mapping
from types import MappingProxyType
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs.access import outranks
from runs.lifecycle.membership import ARTICLE, forget_request, held_run, person_called
from runs.models import Member, Run, RunRole
from runs.timeline import ROLE, add_action

# Most people with each role in a run
MOST: Mapping[Run.Role, int] = MappingProxyType({Run.Role.CO_ORGANIZER: 10, Run.Role.MODERATOR: 30})


def roles_in(run: Run) -> QuerySet[RunRole]:
    return run.roles.select_related("person").order_by("role", "accepted_at", "pk")


def roles_of(person: Person) -> QuerySet[RunRole]:
    return person.run_roles.select_related("run", "invited_by").order_by("-invited_at")


def role_offered(*, slug: str, person: Person) -> RunRole:
    """Return the person's role in a run, or their invitation to one. Raises Problem E305 if they have neither."""
    offered = RunRole.objects.select_related("run__organizer", "invited_by").filter(run__slug=slug, person=person)
    found = offered.first()
    if found is None:
        raise Problem.of("E305", address=f"/runs/{slug}/")
    return found


@transaction.atomic
def invite(*, run: Run, name: str, role: Run.Role, by: Person | None = None) -> RunRole:
    """Invite a person to a role in a run.

    Raises PermissionDenied unless the role is below that of `by`. Raises Problem E314 if no one has this name, and E359
    if the person cannot get this role.
    """
    now = held_run(run.pk)
    who, person = by or now.organizer, person_called(name)
    if role not in MOST or not outranks(now.role_of(who), role):
        raise PermissionDenied
    if (reason := _why_not(now, person, role)) is not None:
        raise Problem.of("E359", name=person.username, role=ARTICLE[role], reason=reason)
    offered = RunRole.objects.create(run=now, person=person, role=role, invited_by=who)
    action = f"invited {person.username} to be {ARTICLE[role]}."
    add_action(run=now, kind=ROLE, action=action, by=who, on=person, is_internal=True)
    return offered


def _why_not(run: Run, person: Person, role: Run.Role) -> str | None:
    if person.pk == run.organizer_id:
        return "they organize it"
    known = run.roles.filter(person=person).first()
    if known is not None:
        is_there = "they are" if known.accepted_at else "they were invited to be"
        return f"{is_there} {ARTICLE[Run.Role(known.role)]} already"
    if run.members.filter(person=person).exclude(removed_at=None).exists():
        return "they were removed from it, so restore their access first"
    if run.roles.filter(role=role).count() >= MOST[role]:
        return f"it has {MOST[role]} of them, those invited counted, and no more are possible"
    return None


@transaction.atomic
def accept(*, offered: RunRole) -> None:
    """Accept a role and become a member. Raises Problem E305 if the invitation was withdrawn."""
    run, person, role = held_run(offered.run_id), offered.person, Run.Role(offered.role)
    if not RunRole.objects.filter(pk=offered.pk, role=role).exists():
        raise Problem.of("E305", address=f"/runs/{run.slug}/")
    if RunRole.objects.filter(pk=offered.pk, accepted_at=None).update(accepted_at=timezone.now()):
        Member.objects.get_or_create(run=run, person=person)
        forget_request(run, person)
        action = f"accepted to be {ARTICLE[role]}."
        add_action(run=run, kind=ROLE, action=action, by=person, is_internal=True)


@transaction.atomic
def give_up(*, offered: RunRole, why: str = "") -> None:
    """Decline or give up a role. `why` is appended to the line about it on the timeline."""
    run, person, role = held_run(offered.run_id), offered.person, Run.Role(offered.role)
    held = RunRole.objects.filter(pk=offered.pk).first()
    if held is None:
        return
    held.delete()
    what = "gave up the role of" if held.accepted_at else "declined the role of"
    action = f"{what} {role}{why}."
    add_action(run=run, kind=ROLE, action=action, by=person, role=role, is_internal=True)


@transaction.atomic
def take_back(*, given: RunRole, by: Person | None = None) -> None:
    """End a role, or withdraw the invitation to it. Raises PermissionDenied unless the role is below that of `by`."""
    run, person, role = held_run(given.run_id), given.person, Run.Role(given.role)
    if not outranks(run.role_of(by or run.organizer), role):
        raise PermissionDenied
    held = RunRole.objects.filter(pk=given.pk).first()
    if held is None:
        return
    held.delete()
    name = person.username
    action = f"removed {name} as {role}." if held.accepted_at else f"withdrew {name}'s invitation as {role.label}."
    add_action(run=run, kind=ROLE, action=action, by=by, on=person, is_internal=True)


def successors(person: Person) -> list[RunRole]:
    """For each run that the person organizes, return the role of the co-organizer who would take over.

    This is the longest-standing co-organizer with an active account. Runs without one are left out.
    """
    standing = RunRole.objects.filter(
        run__organizer=person, role=Run.Role.CO_ORGANIZER, accepted_at__isnull=False, person__is_active=True
    ).select_related("run", "person")
    found: dict[UUID, RunRole] = {}
    for each in standing.order_by("accepted_at", "pk"):
        found.setdefault(each.run_id, each)
    return list(found.values())


@transaction.atomic
def hand_over(*, to: RunRole) -> None:
    """Make a co-organizer the organizer, because the current organizer is deleting their account."""
    now = held_run(to.run_id)
    heir = (
        now.roles.select_related("person")
        .filter(pk=to.pk, role=Run.Role.CO_ORGANIZER)
        .exclude(accepted_at=None)
        .first()
    )
    if heir is None:
        return
    Run.objects.filter(pk=now.pk).update(organizer=heir.person)
    heir.delete()
    text = f"{heir.person.username} organizes the run now: the organizer before deleted their account."
    add_action(run=now, kind="handed over", text=text, by=now.organizer, role=Run.Role.ORGANIZER, on=heir.person)
