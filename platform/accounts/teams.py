"""Functions for creating, joining and leaving teams. A person can be in only one team at a time."""

import secrets

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext

from accounts.days import day_of
from accounts.models import Person, Team, TeamMember
from accounts.services import digest_of
from peer_agent.protocol.errors import Problem

MOST_MEMBERS = 1000
RESERVED = {"new", "leave", ""}  # taken by pages of the site


def team_of(person: Person) -> Team | None:
    return Team.objects.filter(members__person=person, members__left_day=None).first()


def members_of(team: Team) -> QuerySet[TeamMember]:
    return team.members.filter(left_day=None).select_related("person")


@transaction.atomic
def make_team(*, leader: Person, name: str) -> Team:
    """Create a team and remove its leader from any previous team. Raises ValidationError if the name is not allowed."""
    name = " ".join(name.split())
    team = Team(name=name, slug=_free_slug(name), leader=leader)
    team.full_clean(exclude=["link_digest"])
    try:
        with transaction.atomic():
            team.save()
    except IntegrityError as error:  # two simultaneous requests
        raise ValidationError({"name": gettext("That name is taken.")}) from error
    _move(leader, team)
    return team


def new_link(*, team: Team) -> str:
    """Replace the team's invitation link and return the new link's secret, which is shown only once."""
    secret = secrets.token_urlsafe(32)
    team.link_digest = digest_of(secret)
    team.save(update_fields=["link_digest"])
    return secret


def team_by_link(*, slug: str, secret: str) -> Team:
    """Return the team that an invitation link belongs to. Raises Problem E330 if the link does not work."""
    team = Team.objects.filter(slug=slug, link_digest=digest_of(secret)).first()
    if team is None:
        raise Problem.of("E330")
    return team


@transaction.atomic
def join_team(*, slug: str, secret: str, person: Person) -> Team:
    """Move a person into the team whose invitation link they have opened.

    Raises Problem E330 if the link does not work, or E340 if the team is full.
    """
    team = Team.objects.select_for_update().get(pk=team_by_link(slug=slug, secret=secret).pk)
    if members_of(team).filter(person=person).exists():
        return team
    if members_of(team).count() >= MOST_MEMBERS:
        raise Problem.of("E340", most=f"{MOST_MEMBERS:,}")
    if not members_of(team).exists():
        team.leader = person
        team.save(update_fields=["leader"])
    _move(person, team)
    return team


@transaction.atomic
def leave_team(*, person: Person) -> None:
    """End a person's membership in a team. The samples that they contributed still count for the team.

    If the person led the team, the longest-standing member takes over.
    """
    for place in TeamMember.objects.filter(person=person, left_day=None):
        _leave(place)


@transaction.atomic
def remove_member(*, team: Team, person: Person) -> None:
    """Remove a member, and disable the team's invitation link in case the member knows it."""
    for place in members_of(team).filter(person=person):
        _leave(place)
        Team.objects.filter(pk=team.pk).update(link_digest="")


def _move(person: Person, team: Team) -> None:
    leave_team(person=person)
    try:
        with transaction.atomic():
            TeamMember.objects.create(team=team, person=person, joined_day=day_of(timezone.now()))
    except IntegrityError as error:  # two simultaneous requests
        raise ValidationError({"name": gettext("You joined another team at this moment.")}) from error


def _leave(place: TeamMember) -> None:
    team = Team.objects.select_for_update().get(pk=place.team_id)
    place.left_day = day_of(timezone.now())
    place.save(update_fields=["left_day"])
    oldest = members_of(team).first()
    if oldest is None:
        team.link_digest = ""
    elif team.leader_id == place.person_id:
        team.leader = oldest.person
    team.save(update_fields=["leader", "link_digest"])


def _free_slug(name: str) -> str:
    """Return an unused slug. If the name is taken or has no Latin letters, append four random characters."""
    wanted = slugify(name)[:34].strip("-")
    slug = wanted
    while slug in RESERVED or Team.objects.filter(slug=slug).exists():
        slug = f"{wanted or 'team'}-{secrets.token_hex(2)}"
    return slug
