"""Everything that happened, by kind and by pages; and as a feed."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.test import Client

from accounts.models import Person
from runs.lifecycle.membership import add_member
from runs.models import ActivityLine, Run
from runs.timeline import GROUPS, MEMBER, STEP, VOID, add_line
from tests.web.browsing import as_, page
from web.pages.runs import activity

ENTRY = re.compile(r"<span>(line \d+)</span>")


@pytest.fixture
def busy(run: Run) -> Run:
    ActivityLine.objects.filter(run=run).delete()
    for place, kind in enumerate((STEP, "joined", VOID, "paused", STEP, "left")):
        add_line(run=run, kind=kind, text=f"line {place}")
    return run


@pytest.mark.parametrize(
    ("show", "shown"),
    [("", [5, 4, 3, 2, 1, 0]), ("steps", [4, 0]), ("people", [5, 1]), ("problems", [2]), ("organizer", [3]),
     ("no such", [5, 4, 3, 2, 1, 0])],
)  # fmt: skip
def test_lines_by_their_kind_the_newest_first(busy: Run, client: Client, show: str, shown: list[int]) -> None:
    text = page(client.get("/runs/proverbs/activity/", {"show": show}))
    assert ENTRY.findall(text) == [f"line {place}" for place in shown]


def test_older_lines_are_behind_the_newest(busy: Run, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PAGE", 4)
    seen, path = [], "/runs/proverbs/activity/?show="
    while path:
        text = page(client.get(path))
        seen.append(len(ENTRY.findall(text)))
        older = re.search(r'href="(\?show=&amp;before=\d+)"', text)
        path = f"/runs/proverbs/activity/{older[1]}".replace("&amp;", "&") if older else ""
    assert seen == [4, 2]


@pytest.mark.parametrize("before", ["-1", "x", "9" * 5000, "\0", "0"])
def test_a_page_that_is_not_there_is_empty(busy: Run, client: Client, before: str) -> None:
    assert client.get("/runs/proverbs/activity/", {"before": before}).status_code == 200


def test_every_kind_is_in_a_group(busy: Run) -> None:
    """Else nobody finds it who looks for one."""
    kinds = [kind for group in GROUPS.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    source = "".join(path.read_text() for path in _sources())
    said = set(re.findall(r'(?:Note\(|kind=)"([a-z -]+)"', source)) - {"rollback"}  # a kind of entry
    assert {"step", "void", "paused", "silent"} <= said | set(kinds)
    assert said <= set(kinds)


def _sources() -> list[Path]:
    root = Path(__file__).parents[4]
    places = ("peer_agent/protocol/coordinator", "platform/runs", "platform/coordination")
    return [path for place in places for path in (root / place).rglob("*.py")]


def test_guests_are_named_to_guests_alone(run: Run, stranger: Person) -> None:
    Run.objects.filter(pk=run.pk).update(visibility=Run.Visibility.PRIVATE)
    run.refresh_from_db()
    add_member(run=run, name=stranger.username)
    assert "added Noor" in page(as_(stranger).get("/runs/proverbs/activity/?show=people"))
    Run.objects.filter(pk=run.pk).update(visibility=Run.Visibility.PUBLIC)
    assert run.activity.filter(kind=MEMBER).exists()
    for path in ("activity/", "activity/?show=people", "feed.rss"):
        assert "added Noor" not in Client().get(f"/runs/proverbs/{path}").content.decode()


class TestFeed:
    """For readers of news."""

    def test_has_what_happened_but_for_steps(self, busy: Run, client: Client) -> None:
        answer = client.get("/runs/proverbs/feed.rss")
        assert answer["Content-Type"].startswith("application/rss+xml")
        titles = [item.findtext("title") for item in ET.fromstring(answer.content).iter("item")]
        assert titles == [f"line {place}" for place in (5, 3, 2, 1)]

    def test_is_whole_whatever_people_write(self, run: Run, client: Client) -> None:
        Run.objects.filter(pk=run.pk).update(title="a <b> & \x08\x1b “c” مثل \u202e")
        add_line(run=run, kind="paused", text="]]> & <script>\x00\x0b".replace("\x00", ""))
        tree = ET.fromstring(client.get("/runs/proverbs/feed.rss").content)
        assert tree.findtext("channel/title") == "a <b> &  “c” مثل \u202e · Manyhands"
        assert tree.findtext("channel/item/title") == "]]> & <script>"

    def test_is_short_however_long_the_run_is(self, run: Run, client: Client) -> None:
        ActivityLine.objects.bulk_create(ActivityLine(run=run, kind="left", text="x") for _ in range(3 * activity.FEED))
        tree = ET.fromstring(client.get("/runs/proverbs/feed.rss").content)
        assert len(list(tree.iter("item"))) == activity.FEED
