"""A run's members, who are admitted by invitation link or by name; and removals, which are possible in any run.

Someone removed from a public run can still see its page, but their machines cannot take part.
"""

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from accounts.models import Person
from accounts.services import digest_of
from peer_agent.protocol.errors import Problem
from runs.access import outranks
from runs.models import Invitation, JoinRequest, Member, Run
from runs.timeline import MEMBER, ROLE, add_action, add_line

ARTICLE: Mapping[Run.Role, str] = MappingProxyType(
    {
        Run.Role.ORGANIZER: "the organizer",
        Run.Role.CO_ORGANIZER: "a co-organizer",
        Run.Role.MODERATOR: "a moderator",
    }
)


class IssuedInvitation(NamedTuple):
    """An invitation together with its secret, which is shown only once."""

    invitation: Invitation
    secret: str


def members_of(run: Run) -> QuerySet[Member]:
    """Return the current members except the organizer, longest-standing first."""
    return run.members.filter(removed_at=None).exclude(person=run.organizer_id).select_related("person")


def removed_from(run: Run) -> QuerySet[Member]:
    return run.members.exclude(removed_at=None).select_related("person").order_by("-removed_at")


def open_invitations(run: Run, now: datetime | None = None) -> QuerySet[Invitation]:
    is_left = Q(most_uses=None) | Q(uses__lt=F("most_uses"))
    lasts = Q(expires_at=None) | Q(expires_at__gt=now or timezone.now())
    return run.invitations.filter(is_left & lasts, revoked_at=None)


@transaction.atomic
def create_invitation(
    *, run: Run, most_uses: int | None = None, lifetime: timedelta | None = None, by: Person | None = None
) -> IssuedInvitation:
    """Create an invitation link with a secret of 256 random bits. Without limits, the link works until revoked."""
    secret = secrets.token_urlsafe(32)
    expires_at = timezone.now() + lifetime if lifetime else None
    invitation = Invitation.objects.create(
        run=run, digest=digest_of(secret), most_uses=most_uses, expires_at=expires_at
    )
    uses = "any number of people" if most_uses is None else "one person" if most_uses == 1 else f"{most_uses:,} people"
    until = f", until {expires_at:%d %b %Y, %H:%M} UTC" if expires_at else ""
    add_action(run=run, kind=MEMBER, action=f"created an invitation link for {uses}{until}.", by=by, is_internal=True)
    return IssuedInvitation(invitation, secret)


@transaction.atomic
def revoke_invitation(*, invitation: Invitation, by: Person | None = None) -> None:
    """Revoke an invitation link. People who joined through it remain members."""
    if Invitation.objects.filter(pk=invitation.pk, revoked_at=None).update(revoked_at=timezone.now()):
        made = f"{invitation.created_at:%d %b %Y, %H:%M} UTC"
        action = f"revoked the invitation link created {made}."
        add_action(run=invitation.run, kind=MEMBER, action=action, by=by, is_internal=True)


def invitation_to(*, slug: str, secret: str) -> Invitation:
    """Return the invitation that a link belongs to. Raises Problem E313 if there is none or it no longer works."""
    known = Invitation.objects.select_related("run__organizer").filter(run__slug=slug, digest=digest_of(secret)).first()
    if known is None or not open_invitations(known.run).filter(pk=known.pk).exists():
        raise Problem.of("E313")
    return known


@transaction.atomic
def accept_invitation(*, slug: str, secret: str, person: Person) -> Run:
    """Make the person a member through an invitation link. If they already are one, the link is not used up.

    Raises Problem E313 if the link does not work or the person has been removed from the run.
    """
    invitation = invitation_to(slug=slug, secret=secret)
    run = Run.objects.select_for_update().get(pk=invitation.run_id)
    known = run.members.filter(person=person).first()
    if (known is not None and known.removed_at is None) or run.organizer_id == person.pk:
        return run
    if known is not None or not open_invitations(run).filter(pk=invitation.pk).update(uses=F("uses") + 1):
        raise Problem.of("E313")
    Member.objects.create(run=run, person=person, invitation=invitation)
    forget_request(run, person)
    add_line(run=run, kind=MEMBER, text=f"{person.username} accepted an invitation.", names=[person.username])
    return run


@transaction.atomic
def add_member(*, run: Run, name: str, by: Person | None = None) -> Member:
    """Make a person a member by name, even if they had been removed. Raises Problem E314 if no one has this name."""
    person = person_called(name)
    known = run.members.filter(person=person, removed_at=None).first()
    if known is not None:
        return known
    facts = {"removed_at": None, "joined_at": timezone.now()}
    member, _ = Member.objects.update_or_create(run=run, person=person, defaults=facts)
    forget_request(run, person)
    add_action(run=run, kind=MEMBER, action=f"added {person.username}.", by=by, on=person)
    return member


def person_called(name: str) -> Person:
    """Return the active person with this name, ignoring case. Raises Problem E314 if there is none."""
    person = Person.objects.filter(username__iexact=Person.normalize_username(name.strip()), is_active=True).first()
    if person is None:
        raise Problem.of("E314", name=name.strip())
    return person


@transaction.atomic
def remove_member(*, member: Member, by: Person | None = None) -> None:
    """Remove a person from a run and end their role. They keep their credit.

    The host disconnects the person's machines within a second. Raises Problem E325 unless the person's role is lower
    than that of `by`, and PermissionDenied if `by` has no role.
    """
    run, person = held_run(member.run_id), member.person
    role, own = run.role_of(person), run.role_of(by or run.organizer)
    if own is None:
        raise PermissionDenied
    if role is not None and not outranks(own, role):
        raise Problem.of("E325", name=person.username, role=ARTICLE[role])
    if not Member.objects.filter(pk=member.pk, removed_at=None).update(removed_at=timezone.now()):
        return
    forget_request(run, person)
    add_action(run=run, kind=MEMBER, action=f"removed {person.username}.", by=by, on=person)
    if run.roles.filter(person=person).delete()[0] and role is not None:
        action = f"removed {person.username} as {role}."
        add_action(run=run, kind=ROLE, action=action, by=by, on=person, is_internal=True)


@transaction.atomic
def remove_person(*, run: Run, name: str, by: Person | None = None) -> Member:
    """Remove a person from a run by name, even if they have not joined it.

    Raises Problem E314 if no one has this name, E325 if the person's role is not lower than that of `by`, and
    PermissionDenied if `by` has no role.
    """
    person = person_called(name)
    member, _ = Member.objects.get_or_create(run=run, person=person)
    remove_member(member=member, by=by)
    member.refresh_from_db()
    return member


@transaction.atomic
def let_back(*, member: Member, by: Person | None = None) -> None:
    if Member.objects.filter(pk=member.pk).exclude(removed_at=None).update(removed_at=None):
        action = f"let {member.person.username} back in."
        add_action(run=member.run, kind=MEMBER, action=action, by=by, on=member.person)


def forget_request(run: Run, person: Person) -> None:
    JoinRequest.objects.filter(run=run, person=person).delete()


def held_run(run: UUID) -> Run:
    """Lock and return a run's row. Until the transaction ends, other changes of its roles and members must wait."""
    return Run.objects.select_for_update(of=("self",)).select_related("organizer").get(pk=run)


def keep_helpers(run: Run) -> None:
    """Make past contributors members, because a run that was open to all is becoming members-only."""
    helpers = run.totals.exclude(person=run.organizer).values_list("person", flat=True)
    rows = [Member(run=run, person_id=person) for person in helpers.distinct()]
    Member.objects.bulk_create(rows, ignore_conflicts=True)
