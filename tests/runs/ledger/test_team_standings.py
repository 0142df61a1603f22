"""Team standings: a sample counts for the team to which the person belonged on that day."""

import pytest

from accounts import teams
from accounts.models import Person, Team, TeamMember
from runs.ledger.standings import given_by_member, given_by_run, team_board
from runs.models import DailyTotal, Run
from tests.runs.factories import opened


@pytest.fixture
def run(organizer: Person) -> Run:
    return opened(organizer)


def gave(run: Run, person: Person, **by_day: int) -> None:
    for day, samples in by_day.items():
        DailyTotal.objects.create(run=run, person=person, day=int(day.removeprefix("d")), samples=samples)


def place(team: Team, person: Person, joined: int, left: int | None = None) -> None:
    TeamMember.objects.create(team=team, person=person, joined_day=joined, left_day=left)


@pytest.fixture
def hands(volunteer: Person) -> Team:
    team = teams.make_team(leader=volunteer, name="Hands")
    TeamMember.objects.all().delete()
    return team


@pytest.fixture
def feet(stranger: Person) -> Team:
    team = teams.make_team(leader=stranger, name="Feet")
    TeamMember.objects.all().delete()
    return team


def test_days_before_and_after_do_not_count(run: Run, hands: Team, volunteer: Person) -> None:
    gave(run, volunteer, d9=1000, d10=1, d11=2, d12=1000)
    place(hands, volunteer, 10, 12)
    assert [(line.name, line.samples, line.people) for line in team_board(run)] == [("Hands", 3, 1)]


def test_each_day_is_one_teams(run: Run, hands: Team, feet: Team, volunteer: Person, stranger: Person) -> None:
    """A change of team takes effect that day, even if the person returns to an earlier team."""
    gave(run, volunteer, d1=1, d2=10, d3=100, d4=1000)
    gave(run, stranger, d2=5, d3=5)
    place(hands, volunteer, 1, 2)
    place(feet, volunteer, 2, 3)
    place(hands, volunteer, 3)
    place(feet, stranger, 3)
    assert [tuple(line) for line in team_board(run)] == [(1, "Hands", "hands", 1101, 1), (2, "Feet", "feet", 15, 2)]
    assert [line.rank for line in team_board(run, offset=1, limit=1)] == [2]
    everything = Run.objects.all()
    assert given_by_member(feet, everything) == {volunteer.username: 10, stranger.username: 5}
    assert given_by_run(hands, everything) == [(run.title, run.slug, 1101)]
    assert given_by_run(hands, Run.objects.none()) == []


def test_runs_are_apart(run: Run, organizer: Person, hands: Team, volunteer: Person) -> None:
    other = opened(organizer, slug="other")
    place(hands, volunteer, 1)
    gave(run, volunteer, d1=7)
    gave(other, volunteer, d1=9)
    assert [line.samples for line in team_board(run)] == [7]
    assert [slug for _, slug, _ in given_by_run(hands, Run.objects.all())] == ["other", run.slug]


def test_who_is_in_none_has_no_row(run: Run, volunteer: Person) -> None:
    gave(run, volunteer, d1=7)
    assert team_board(run) == []
