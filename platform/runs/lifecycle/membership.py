"""Who belongs to a run by invitation: links that let people in, people added by name. And who was removed from any run.

Who was removed from a public run still sees its page, as everybody does; their machines have no part in it.
"""

import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from accounts.models import Person
from accounts.services import digest_of
from peer_agent.protocol.errors import Problem
from runs.models import Invitation, Member, Run
from runs.timeline import add_line


class IssuedInvitation(NamedTuple):
    """An invitation and its secret, which is shown now and never again."""

    invitation: Invitation
    secret: str


def members_of(run: Run) -> QuerySet[Member]:
    """Those who are in, the first first."""
    return run.members.filter(removed_at=None).select_related("person")


def removed_from(run: Run) -> QuerySet[Member]:
    """Those who were removed, the last first."""
    return run.members.exclude(removed_at=None).select_related("person").order_by("-removed_at")


def open_invitations(run: Run, now: datetime | None = None) -> QuerySet[Invitation]:
    """Links that still let somebody in."""
    is_left = Q(most_uses=None) | Q(uses__lt=F("most_uses"))
    lasts = Q(expires_at=None) | Q(expires_at__gt=now or timezone.now())
    return run.invitations.filter(is_left & lasts, revoked_at=None)


def create_invitation(*, run: Run, most_uses: int | None = None, lifetime: timedelta | None = None) -> IssuedInvitation:
    """A link of 256 random bits; without bounds it is good until it is taken back."""
    secret = secrets.token_urlsafe(32)
    expires_at = timezone.now() + lifetime if lifetime else None
    invitation = Invitation.objects.create(
        run=run, digest=digest_of(secret), most_uses=most_uses, expires_at=expires_at
    )
    return IssuedInvitation(invitation, secret)


def revoke_invitation(*, invitation: Invitation) -> None:
    """From now on the link lets nobody in; who came by it stays."""
    Invitation.objects.filter(pk=invitation.pk, revoked_at=None).update(revoked_at=timezone.now())


def invitation_to(*, slug: str, secret: str) -> Invitation:
    """The invitation behind a link. Raises Problem E313, also where the run is not there."""
    known = Invitation.objects.select_related("run__organizer").filter(run__slug=slug, digest=digest_of(secret)).first()
    if known is None or not open_invitations(known.run).filter(pk=known.pk).exists():
        raise Problem.of("E313")
    return known


@transaction.atomic
def accept_invitation(*, slug: str, secret: str, person: Person) -> Run:
    """Become a member; whoever is one already uses nothing up. Raises Problem E313, also for who was removed."""
    invitation = invitation_to(slug=slug, secret=secret)
    run = Run.objects.select_for_update().get(pk=invitation.run_id)
    known = run.members.filter(person=person).first()
    if (known is not None and known.removed_at is None) or run.organizer_id == person.pk:
        return run
    if known is not None or not open_invitations(run).filter(pk=invitation.pk).update(uses=F("uses") + 1):
        raise Problem.of("E313")
    Member.objects.create(run=run, person=person, invitation=invitation)
    add_line(run=run, kind="member", text=f"{person.username} accepted an invitation.")
    return run


@transaction.atomic
def add_member(*, run: Run, name: str) -> Member:
    """Let somebody in by name, also who was removed. Raises Problem E314."""
    person = _person_called(name)
    known = run.members.filter(person=person, removed_at=None).first()
    if known is not None:
        return known
    facts = {"removed_at": None, "joined_at": timezone.now()}
    member, _ = Member.objects.update_or_create(run=run, person=person, defaults=facts)
    add_line(run=run, kind="member", text=f"{run.organizer.username} added {person.username}.")
    return member


def _person_called(name: str) -> Person:
    """Raises Problem E314."""
    person = Person.objects.filter(username__iexact=name.strip(), is_active=True).first()
    if person is None:
        raise Problem.of("E314", name=name.strip())
    return person


@transaction.atomic
def remove_member(*, member: Member) -> None:
    """Shut somebody out: the run's host cuts their machines off within about a second. Their credit stays."""
    if Member.objects.filter(pk=member.pk, removed_at=None).update(removed_at=timezone.now()):
        run = member.run
        add_line(run=run, kind="member", text=f"{run.organizer.username} removed {member.person.username}.")


@transaction.atomic
def remove_person(*, run: Run, name: str) -> None:
    """Shut somebody out of a run that is open to all, also before they come. Raises Problem E314, E325."""
    person = _person_called(name)
    if person.pk == run.organizer_id:
        raise Problem.of("E325", name=person.username)
    member, _ = Member.objects.get_or_create(run=run, person=person)
    remove_member(member=member)


@transaction.atomic
def let_back(*, member: Member) -> None:
    """Take a removal back."""
    if Member.objects.filter(pk=member.pk).exclude(removed_at=None).update(removed_at=None):
        run = member.run
        add_line(run=run, kind="member", text=f"{run.organizer.username} let {member.person.username} back in.")


def keep_helpers(run: Run) -> None:
    """A run that was open to all is by invitation now: whoever is in its ledger stays."""
    helpers = run.totals.exclude(person=run.organizer).values_list("person", flat=True)
    rows = [Member(run=run, person_id=person) for person in helpers.distinct()]
    Member.objects.bulk_create(rows, ignore_conflicts=True)
