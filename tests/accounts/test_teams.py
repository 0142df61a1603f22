"""Teams: a person belongs to at most one team. An invitation link works until a new link replaces it."""

import pytest
from django.core.exceptions import ValidationError

from accounts import teams
from accounts.deactivation import forget_person
from accounts.models import Person, Team, TeamMember
from peer_agent.protocol.errors import Problem


@pytest.fixture
def team(volunteer: Person) -> Team:
    return teams.make_team(leader=volunteer, name="  Many   hands ")


def names(team: Team) -> list[str]:
    return [member.person.username for member in teams.members_of(team)]


def test_whoever_makes_one_leads_it_and_is_in_it(team: Team, volunteer: Person) -> None:
    assert (team.name, team.slug, team.leader) == ("Many hands", "many-hands", volunteer)
    assert names(team) == [volunteer.username]
    assert teams.team_of(volunteer) == team


@pytest.mark.parametrize("name", ["MANY HANDS", "many  hands", "", "   ", "x" * 41])
def test_a_name_is_short_and_its_own(team: Team, stranger: Person, name: str) -> None:
    with pytest.raises(ValidationError):
        teams.make_team(leader=stranger, name=name)
    assert teams.team_of(stranger) is None


@pytest.mark.parametrize("name", ["হাত", "New", "leave"])
def test_every_name_has_an_address_of_its_own(team: Team, stranger: Person, name: str) -> None:
    made = teams.make_team(leader=stranger, name=name)
    assert made.slug not in {"", "new", "leave", team.slug}
    assert made.name == name


def test_names_that_look_alike_in_an_address_do_not_share_one(team: Team, stranger: Person) -> None:
    assert teams.make_team(leader=stranger, name="Many-hands").slug.startswith("many-hands-")


def test_a_link_lets_in_until_there_is_another(team: Team, stranger: Person, organizer: Person) -> None:
    with pytest.raises(Problem, match="E330"):
        teams.join_team(slug=team.slug, secret="", person=stranger)
    first = teams.new_link(team=team)
    for _ in range(2):
        teams.join_team(slug=team.slug, secret=first, person=stranger)
    assert names(team)[1:] == [stranger.username]
    second = teams.new_link(team=team)
    with pytest.raises(Problem, match="E330"):
        teams.join_team(slug=team.slug, secret=first, person=organizer)
    teams.join_team(slug=team.slug, secret=second, person=organizer)
    assert len(names(team)) == 3
    assert first not in Team.objects.get().link_digest


def test_whoever_joins_another_leaves_the_first(team: Team, stranger: Person) -> None:
    secret = teams.new_link(team=team)
    own = teams.make_team(leader=stranger, name="Solo")
    teams.join_team(slug=team.slug, secret=secret, person=stranger)
    assert teams.team_of(stranger) == team
    assert names(own) == []
    assert TeamMember.objects.filter(person=stranger).count() == 2


def test_a_team_that_is_full_lets_nobody_in(team: Team, stranger: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "MOST_MEMBERS", 1)
    secret = teams.new_link(team=team)
    with pytest.raises(Problem, match=r"E340.*1 members"):
        teams.join_team(slug=team.slug, secret=secret, person=stranger)


def test_a_leader_who_leaves_hands_it_on(team: Team, volunteer: Person, stranger: Person, organizer: Person) -> None:
    secret = teams.new_link(team=team)
    for person in (stranger, organizer):
        teams.join_team(slug=team.slug, secret=secret, person=person)
    teams.leave_team(person=volunteer)
    team.refresh_from_db()
    assert team.leader == stranger
    teams.remove_member(team=team, person=organizer)
    assert names(team) == [stranger.username]
    with pytest.raises(Problem, match="E330"):
        teams.join_team(slug=team.slug, secret=secret, person=organizer)
    forget_person(person=stranger)
    assert names(team) == []
    teams.leave_team(person=volunteer)


def test_an_empty_team_lets_nobody_in(team: Team, volunteer: Person, stranger: Person) -> None:
    secret = teams.new_link(team=team)
    teams.leave_team(person=volunteer)
    with pytest.raises(Problem, match="E330"):
        teams.join_team(slug=team.slug, secret=secret, person=stranger)


def test_whoever_comes_into_an_empty_team_leads_it(team: Team, volunteer: Person, stranger: Person) -> None:
    teams.leave_team(person=volunteer)
    team.refresh_from_db()
    secret = teams.new_link(team=team)  # the link that the leader's page still showed
    teams.join_team(slug=team.slug, secret=secret, person=stranger)
    team.refresh_from_db()
    assert team.leader == stranger


def test_two_who_take_one_name_at_once(team: Team, stranger: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "full_clean", lambda *_, **__: None)
    with pytest.raises(ValidationError, match="taken"):
        teams.make_team(leader=stranger, name="MANY HANDS")
    assert teams.team_of(stranger) is None
