"""Teams: who makes one, who is let in by its link, who leaves. Somebody is in one team at a time."""

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
RESERVED = {"new", "leave", ""}  # addresses of the site's own


def team_of(person: Person) -> Team | None:
    return Team.objects.filter(members__person=person, members__left_day=None).first()


def members_of(team: Team) -> QuerySet[TeamMember]:
    return team.members.filter(left_day=None).select_related("person")


@transaction.atomic
def make_team(*, leader: Person, name: str) -> Team:
    """A team with its leader in it, who leaves the one they were in. Raises ValidationError with what is wrong."""
    name = " ".join(name.split())
    team = Team(name=name, slug=_free_slug(name), leader=leader)
    team.full_clean(exclude=["link_digest"])
    try:
        with transaction.atomic():
            team.save()
    except IntegrityError as error:  # twice at once
        raise ValidationError({"name": gettext("That name is taken.")}) from error
    _move(leader, team)
    return team


def new_link(*, team: Team) -> str:
    """The secret of a link that lets people in, shown now and never again; the one before lets nobody in any more."""
    secret = secrets.token_urlsafe(32)
    team.link_digest = digest_of(secret)
    team.save(update_fields=["link_digest"])
    return secret


def team_by_link(*, slug: str, secret: str) -> Team:
    """Where a link leads. Raises Problem E330."""
    team = Team.objects.filter(slug=slug, link_digest=digest_of(secret)).first()
    if team is None:
        raise Problem.of("E330")
    return team


@transaction.atomic
def join_team(*, slug: str, secret: str, person: Person) -> Team:
    """Be let in by a link, and leave the team one was in. Raises Problem E330, E340 (full)."""
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
    """Be in no team. What was given stays the team's; whoever led it hands it to whoever is in it for longest."""
    for place in TeamMember.objects.filter(person=person, left_day=None):
        _leave(place)


@transaction.atomic
def remove_member(*, team: Team, person: Person) -> None:
    """End somebody's place in a team, by its leader. Its link, which they may have, lets nobody in any more."""
    for place in members_of(team).filter(person=person):
        _leave(place)
        Team.objects.filter(pk=team.pk).update(link_digest="")


def _move(person: Person, team: Team) -> None:
    leave_team(person=person)
    try:
        with transaction.atomic():
            TeamMember.objects.create(team=team, person=person, joined_day=day_of(timezone.now()))
    except IntegrityError as error:  # twice at once
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
    """Of a name without Latin letters, and of one that is taken, with four random characters."""
    wanted = slugify(name)[:34].strip("-")
    slug = wanted
    while slug in RESERVED or Team.objects.filter(slug=slug).exists():
        slug = f"{wanted or 'team'}-{secrets.token_hex(2)}"
    return slug
