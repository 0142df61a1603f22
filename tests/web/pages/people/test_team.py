"""A team's pages: creation, invitations, members, and the team's place on the leaderboard."""

import re
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from accounts import teams
from accounts.models import Person, Team, TeamMember
from runs.models import Run
from tests.runs.factories import Owned, committed, opened
from tests.web.browsing import as_, page


@pytest.fixture
def team(volunteer: Person) -> Team:
    return teams.make_team(leader=volunteer, name="<b>Hands</b>")


@pytest.fixture
def run(organizer: Person, laptop: Owned, team: Team) -> Run:
    run = opened(organizer)
    committed(run, (laptop.machine, 40))
    return run


def address(team: Team) -> str:
    return f"/teams/{team.slug}/"


def test_from_a_name_to_a_colleague(volunteer: Person, stranger: Person) -> None:
    leader = as_(volunteer)
    made = leader.post("/teams/new/", {"name": "Weavers"})
    assert made["Location"] == "/teams/weavers/"
    answer = leader.post("/teams/weavers/link/")
    link = re.search(r"http://testserver(/teams/weavers/join/[\w-]{43}/)", page(answer))
    assert link is not None
    assert "no-store" in answer["Cache-Control"]
    assert link[1] not in page(leader.get("/teams/weavers/")), "it is shown once"
    assert "Log in" in page(Client().get(link[1]))
    assert Client().post(link[1]).status_code == 200
    colleague = as_(stranger)
    assert f"Join as {stranger.username}" in page(colleague.get(link[1]))
    assert colleague.post(link[1])["Location"] == "/teams/weavers/"
    shown = page(colleague.get("/teams/weavers/"))
    assert "2 people, no samples yet." in shown
    assert "Leave team" in shown
    assert "Create invitation link" not in shown
    assert "Weavers" in page(colleague.get("/account/"))
    colleague.post("/teams/leave/")
    assert "Leave team" not in page(colleague.get("/teams/weavers/"))


def test_it_says_what_its_members_gave(run: Run, team: Team, client: Client, volunteer: Person) -> None:
    shown = page(client.get(address(team)))
    assert "&lt;b&gt;Hands&lt;/b&gt;" in shown
    assert "1 person contributed 40 samples to 1 AI model." in shown
    assert f'href="/runs/{run.slug}/"' in shown
    assert f'href="/people/{volunteer.username}/"' in shown
    assert "The first samples came today (UTC)." in shown
    assert f'<meta property="og:image" content="http://testserver{address(team)}preview.png">' in shown
    assert client.get(f"{address(team)}preview.png")["Content-Type"] == "image/png"
    board = page(client.get(f"/runs/{run.slug}/leaderboard/?of=teams&period=day"))
    assert f'href="{address(team)}"' in board
    assert '<tr data-key="&lt;b&gt;Hands&lt;/b&gt;">' in board
    own = page(as_(volunteer).get(f"/runs/{run.slug}/leaderboard/?of=teams"))
    assert '<tr data-key="&lt;b&gt;Hands&lt;/b&gt;" class="mine">' in own
    assert "Today" in board
    assert team.name.replace("<", "&lt;").replace(">", "&gt;") in page(client.get(f"/people/{volunteer.username}/"))
    teams.leave_team(person=volunteer)
    assert "0 people, no samples yet." in page(client.get(address(team))), "this day counts for nobody"


def test_without_a_team_the_board_says_so(organizer: Person, client: Client) -> None:
    run = opened(organizer)
    assert "No team has any samples yet." in page(client.get(f"/runs/{run.slug}/leaderboard/?of=teams"))


def test_what_is_not_listed_is_not_counted(organizer: Person, team: Team, laptop: Owned, client: Client) -> None:
    hidden = opened(organizer, slug="not-listed", visibility="unlisted")
    committed(hidden, (laptop.machine, 40))
    assert "not-listed" not in page(client.get(address(team)))
    assert "40 samples" not in page(client.get(address(team)))
    assert "40 samples" in page(as_(organizer).get(address(team)))


def test_its_leader_removes_people_and_not_themselves(team: Team, volunteer: Person, stranger: Person) -> None:
    teams.join_team(slug=team.slug, secret=teams.new_link(team=team), person=stranger)
    leader, remove = as_(volunteer), f"{address(team)}members/"
    refused = leader.post(f"{remove}{volunteer.username}/")
    assert refused.status_code == 403
    assert "use “Leave team”" in page(refused)
    assert leader.post(f"{remove}nobody/").status_code == 404
    assert leader.post(f"{remove}{stranger.username}/").status_code == 302
    assert teams.team_of(stranger) is None


@pytest.mark.parametrize("name", ["", "  ", "x" * 41, "<B>hands</B>"])
def test_a_name_that_cannot_be_is_told_beside_its_field(team: Team, stranger: Person, name: str) -> None:
    answer = as_(stranger).post("/teams/new/", {"name": name})
    assert answer.status_code == 400
    assert 'role="alert"' in page(answer)
    assert Team.objects.count() == 1


def test_guesses_are_counted_and_good_links_are_not(team: Team, stranger: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"wrong invitations": (2, 900)}
    cache.clear()
    client, good = as_(stranger), f"{address(team)}join/{teams.new_link(team=team)}/"
    for _ in range(4):
        assert client.get(good).status_code == 200
    answers = [client.get(f"{address(team)}join/{'x' * 43}/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]
    assert "E330" in page(answers[0])


def test_so_many_are_made_in_a_day_and_no_more(volunteer: Person, settings: Any) -> None:
    settings.RATES = settings.RATES | {"teams": (1, 86_400)}
    cache.clear()
    client = as_(volunteer)
    assert [client.post("/teams/new/", {"name": name}).status_code for name in ("One", "Two")] == [302, 429]


def test_whoever_uses_two_links_at_once_is_in_one_team(
    team: Team, stranger: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two concurrent requests join different teams, and this one is slower. It gets a redirect rather than an error."""
    link = f"{address(team)}join/{teams.new_link(team=team)}/"
    monkeypatch.setattr(teams, "leave_team", lambda **_: None)
    teams.make_team(leader=stranger, name="Solo")
    assert as_(stranger).post(link)["Location"] == "/account/"
    assert Team.objects.get(name="Solo").members.filter(person=stranger, left_day=None).exists()


def test_a_hundred_members_are_listed_at_a_time(run: Run, team: Team, client: Client) -> None:
    people = Person.objects.bulk_create(Person(username=f"hand-{place:03}") for place in range(101))
    TeamMember.objects.bulk_create(TeamMember(team=team, person=person, joined_day=0) for person in people)
    first, rest = (page(client.get(f"{address(team)}?members={begin}")) for begin in (0, 100))
    assert ("102 people" in first, "hand-098" in first, "hand-099" in first) == (True, True, False)
    assert f'href="{address(team)}?members=100#members"' in first
    assert ("hand-098" in rest, "hand-100" in rest) == (False, True)
