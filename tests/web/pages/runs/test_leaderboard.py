"""Leaderboards: the board on the run's page, the page with all the ranks, and the reader's own line."""

import re
import time
from typing import Any

import pytest
from django.db.models import F
from django.test import Client

from accounts.models import Machine, Person, Team, TeamMember
from coordination.models import Presence
from runs.ledger.standings import Period
from runs.models import AveragedTotal, DailyTotal, Run
from tests.runs.factories import committed, owned
from tests.web.browsing import as_, page
from web.pages.runs import leaderboard
from web.run_picture import loading
from web.run_picture.picture import LEADERBOARD_LINES, TALLEST, picture_of, tint_of


@pytest.fixture
def crowd(run: Run) -> Run:
    """Return a run of fourteen people, each ten samples apart from the next. The last person has two machines."""
    machines = [owned(Person.objects.create_user(f"hand {number:02}", None)).machine for number in range(1, 15)]
    second = owned(machines[-1].person, "tower").machine
    parts = [(machine, 10 * (20 - number)) for number, machine in enumerate(machines, start=1)]
    committed(run, *parts[:-1], (machines[-1], 59), (second, 1))
    return run


def rows_shown(text: str) -> int:
    """Return how many people the board has that a run's page shows."""
    (panel,) = re.findall(r'<div data-panel="board=\w+">.*?</div>', text)
    return str(panel).count("data-person")


def test_whoever_is_not_among_the_rows_has_a_line_of_their_own(crowd: Run) -> None:
    text = page(as_("hand 14").get("/runs/proverbs/"))
    assert rows_shown(text) == LEADERBOARD_LINES
    assert '<p id="part-you" class="you">you: 14th, 10 samples short of 13th</p>' in text


@pytest.mark.parametrize("name", ["hand 02", "Noor"])
def test_whoever_has_a_row_or_gave_nothing_has_none(crowd: Run, stranger: Person, name: str) -> None:
    answer = as_(name).get("/runs/proverbs/")
    assert answer.status_code == 200
    text = page(answer)
    assert "you:" not in text
    assert ('data-person="hand 02" class="mine">' in text) == (name == "hand 02")


def test_a_page_asks_for_its_readers_line_alone(crowd: Run, stranger: Person) -> None:
    path, line = "/runs/proverbs/own/", '<p id="part-you" class="you">{}</p>'
    assert line.format("you: 12th, 10 samples short of 11th") in page(as_("hand 12").get(path))
    assert line.format("you: 1st") in page(as_("hand 01").get(path))
    for client in (as_("Noor"), Client()):
        answer = client.get(path)
        assert line.format("") in page(answer)
        assert answer["Cache-Control"] == "private, no-store"


def test_who_has_moved_up_or_down_is_marked_and_said(crowd: Run, client: Client) -> None:
    DailyTotal.objects.update(day=F("day") - 1)
    committed(crowd, (owned(Person.objects.get(username="hand 05"), "second").machine, 21))
    up = '<span aria-hidden="true">▲ 2</span><span class="hidden">up 2 since yesterday</span>'
    down = '<span aria-hidden="true">▼ 1</span><span class="hidden">down 1 since yesterday</span>'
    for path in ("/runs/proverbs/", "/runs/proverbs/leaderboard/"):
        text = page(client.get(path))
        assert re.search(rf'hand 05(</a>)?(</span>)? ?<span class="moved">{up}', text), path
        assert text.count(down) == 2, path
        assert text.count('class="moved"') == 3, path
    assert "moved" not in page(client.get("/runs/proverbs/leaderboard/?of=machines"))
    assert client.get("/runs/proverbs/feed.json").json()["parts"]["leaderboard"].count('class="moved"') == 3


def test_the_feed_does_not_grow_with_the_people(crowd: Run, client: Client) -> None:
    shown = client.get("/runs/proverbs/feed.json").json()["parts"]["leaderboard"]
    board = shown.split("data-panel")[1]
    assert (board.count("data-person"), "14 people on 15 machines" in board) == (LEADERBOARD_LINES, True)


def test_what_was_given_lately_is_drawn_and_said(crowd: Run, client: Client) -> None:
    text = page(client.get("/runs/proverbs/"))
    assert 'aria-label="190 in the last 1 step"' in text
    assert f'<path d="M0 0v-{TALLEST}h3v{TALLEST}z' in text
    assert not re.search(r'<rect x="4" width="3"', text), "one step, one bar"


def test_all_people_and_all_machines(crowd: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderboard, "PAGE", 10)
    first = page(client.get("/runs/proverbs/leaderboard/"))
    assert first.count("<tr") == 11
    assert "page=2" in first
    assert re.search(r'<th scope="col" class="number lesser">Share</th>', first)
    assert re.search(r'<td class="number lesser">\d+(\.\d)?%</td>', first)
    assert ">Share<" not in page(client.get("/runs/proverbs/leaderboard/?period=week")), "weighed samples are no part"
    rest = page(as_("hand 12").get("/runs/proverbs/leaderboard/?of=people&page=2"))
    assert [f"hand {number}" in rest for number in (10, 11, 14)] == [False, True, True]
    assert ("page=1" in rest, "page=3" in rest, "you:" in rest) == (True, False, False)
    assert '<tr data-key="hand 12" class="mine">' in rest
    machines = page(client.get("/runs/proverbs/leaderboard/?of=machines&page=2"))
    assert ("tower" in machines, machines.count("<tr")) == (True, 6)
    assert "you: 12th" in page(as_("hand 12").get("/runs/proverbs/leaderboard/"))


def test_share_of_checked_samples_is_shown_to_the_person_and_to_all(crowd: Run, client: Client) -> None:
    assert ">Checked<" not in page(client.get("/runs/proverbs/leaderboard/"))
    crowd.totals.filter(person__username="hand 02").update(checked=F("samples") * 2 / 3)
    text = page(client.get("/runs/proverbs/leaderboard/"))
    assert ">Checked<" in text
    assert text.count('<td class="number lesser">67%</td>') == 1
    assert "machines have checked 67% of this work." in page(client.get("/people/hand%2002/certificate/"))
    assert "machines have checked" not in page(client.get("/people/hand%2003/certificate/"))
    assert "60 samples are provisional" in page(client.get("/people/hand%2002/runs/proverbs/"))


def test_the_whole_board_is_live(crowd: Run, client: Client) -> None:
    machine = Machine.objects.get(person__username="hand 14", name="tower")
    member = {"peer": machine.peer_id, "name": "hand 14", "role": "trainer", "state": "ready"}
    Presence.objects.create(run=crowd, phase="accumulate", members=[{**member, "done": 0, "samples_per_s": 1.0}])
    board = "/runs/proverbs/leaderboard/"
    text = page(client.get(board))
    assert '<meta name="renew-ms" content="10000">' in text
    assert "1 person is training now." in text
    assert re.search(r'hand 14</a> <span class="now">● now</span>', text)
    assert text.count("● now") == 1
    assert 'aria-label="190 in the last 1 step"' in text
    assert 'aria-label="190 in the last 1 step"' in page(client.get(f"{board}?period=day"))
    machines = page(client.get(f"{board}?of=machines"))
    assert (machines.count("● now"), "<bdi>tower</bdi>" in machines.split("● now")[1][:60]) == (1, True)
    team = Team.objects.create(name="Weavers", slug="weavers", leader=machine.person)
    TeamMember.objects.create(team=team, person=machine.person, joined_day=0)
    assert "● now" in page(client.get(f"{board}?of=teams"))
    Run.objects.update(state=Run.State.PAUSED)
    assert "● now" not in page(client.get(board))
    Run.objects.update(state=Run.State.FINISHED)
    assert "renew-ms" not in page(client.get(board))


def test_strokes_are_shares_of_all_samples(crowd: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderboard, "PAGE", 1)
    text = page(client.get("/runs/proverbs/leaderboard/"))
    drawn = dict(re.findall(r'<path class="(tint-\d|rest)" d="([^"]+)"', text))
    shown = {name: path.count("M") for name, path in drawn.items()}
    assert shown == {f"tint-{tint_of('hand 01')}": 11, "rest": 89}, "190 of 1,750 samples"
    assert "strokes" not in page(client.get("/runs/proverbs/leaderboard/?page=2"))


@pytest.mark.parametrize("number", ["0", "-3", "x", "²", "9" * 30, "999999"])
def test_a_page_that_there_is_not(crowd: Run, client: Client, number: str) -> None:
    assert client.get("/runs/proverbs/leaderboard/", {"page": number}).status_code == 200


def test_before_the_first_sample(run: Run, client: Client) -> None:
    assert "No samples yet." in page(client.get("/runs/proverbs/leaderboard/"))


def test_who_only_averages_has_a_line_without_a_rank(crowd: Run) -> None:
    assert "Averaged" not in page(Client().get("/runs/proverbs/"))
    nas = owned(Person.objects.create_user("Ida", None), "nas").machine
    AveragedTotal.objects.create(run=crowd, machine=nas, person=nas.person, bytes_averaged=2_500_000)
    text = page(Client().get("/runs/proverbs/"))
    assert '<th scope="col" class="number">Averaged</th>' in text
    assert '<td class="number">2.5 MB</td>' in text
    assert re.search(r'<td class="number quiet"></td><td><span class="chip tint-\d">Ida</span></td>', text)


def test_a_day_without_samples_is_not_a_run_without(crowd: Run, client: Client) -> None:
    crowd.daily.all().delete()
    for period, words in (("day", "No samples today."), ("week", "No samples in recent weeks.")):
        text = page(client.get("/runs/proverbs/leaderboard/", {"period": period}))
        assert words in text
        assert "No samples yet" not in text


def test_todays_and_this_weeks_board(crowd: Run, client: Client) -> None:
    for period in ("day", "week"):
        text = page(client.get("/runs/proverbs/leaderboard/", {"period": period}))
        assert text.index("hand 01") < text.index("hand 02") < text.index("hand 14")
        assert "you:" not in text
        assert ">Tokens<" not in text
    assert ">Tokens<" in page(client.get("/runs/proverbs/leaderboard/", {"period": "year"}))
    assert ">Machine<" in page(client.get("/runs/proverbs/leaderboard/", {"period": "day", "of": "machines"}))


def test_its_organizer_removes_people_from_where_they_stand(crowd: Run, client: Client, organizer: Person) -> None:
    board = "/runs/proverbs/leaderboard/"
    assert "Remove" not in page(client.get(board))
    mine = as_(organizer)
    shown = page(mine.get(board))
    form = re.search(r'action="(/runs/proverbs/removed/)">.*?name="remove-name" value="(hand \d+)"', shown)
    assert form is not None
    assert mine.post(form[1], {"remove-name": form[2]}).status_code == 302
    assert crowd.members.exclude(removed_at=None).get().person.username == form[2]
    assert "Remove" not in page(mine.get(f"{board}?of=machines"))
    Run.objects.update(state=Run.State.FINISHED)
    assert "Remove" not in page(mine.get(board))


@pytest.fixture
def unread() -> None:
    loading.period_boards.cache_clear()


@pytest.mark.usefixtures("unread")
def test_a_runs_page_has_the_boards_of_the_week_and_of_today(crowd: Run, client: Client) -> None:
    DailyTotal.objects.update(day=F("day") - 7)
    committed(crowd, (owned(Person.objects.get(username="hand 05"), "second").machine, 21))
    seen = picture_of(loading.seen_of(crowd))
    assert [(line["rank"], line["name"], line["samples"]) for line in seen["day"]] == [(1, "hand 05", 21)]
    assert [line["name"] for line in seen["week"]][:2] == ["hand 05", "hand 01"], "what is a week old counts half"
    assert (seen["week"][0]["samples"], len(seen["week"])) == (96, LEADERBOARD_LINES)
    today = page(client.get("/runs/proverbs/?board=day"))
    assert '<a href="?board=day#leaderboard" data-tab="board=day" aria-current="true">Today</a>' in today
    assert rows_shown(today) == 1
    assert "Samples since midnight, UTC." in today
    week = page(client.get("/runs/proverbs/?board=week"))
    assert (rows_shown(week), "halves every week" in week) == (LEADERBOARD_LINES, True)
    assert rows_shown(page(client.get("/runs/proverbs/?board=<b>"))) == LEADERBOARD_LINES


@pytest.mark.parametrize(("period", "note"), [("day", "Samples since midnight, UTC."), ("week", "halves every week")])
def test_a_board_of_a_period_says_what_it_counts(crowd: Run, client: Client, period: str, note: str) -> None:
    assert note in page(client.get(f"/runs/proverbs/leaderboard/?period={period}"))
    assert note not in page(client.get("/runs/proverbs/leaderboard/"))


@pytest.mark.usefixtures("unread")
def test_a_day_without_a_sample_says_so(crowd: Run, client: Client) -> None:
    DailyTotal.objects.update(day=F("day") - 1)
    assert "No samples today." in page(client.get("/runs/proverbs/?board=day"))


@pytest.mark.usefixtures("unread")
def test_boards_of_a_period_are_read_anew_after_some_seconds(crowd: Run) -> None:
    boards: Any = loading.period_boards.cache
    assert (boards.maxsize, boards.ttl) == (loading.MOST_BOARDS, loading.BOARDS_S)
    assert len(loading.period_boards(crowd)[Period.DAY]) == LEADERBOARD_LINES
    DailyTotal.objects.all().delete()
    assert len(loading.period_boards(crowd)[Period.DAY]) == LEADERBOARD_LINES
    boards.expire(time.monotonic() + loading.BOARDS_S)
    assert loading.period_boards(crowd)[Period.DAY] == []
