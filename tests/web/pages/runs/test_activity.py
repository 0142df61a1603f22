"""The activity page, its RSS feed, and the organizers' trail."""

import re
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.test import Client
from django.utils import timezone

from accounts.models import Person
from runs.lifecycle import membership
from runs.models import ActivityLine, LogEntry, Run, RunRole, Snapshot
from runs.timeline import GROUPS, STEP, VOID, add_action, add_line, trail_of
from tests.runs.factories import Owned, committed, draft, owned, understood
from tests.web.browsing import as_, page
from tests.web.pages.runs.test_members import MANAGE
from tests.web.pages.runs.test_run import filled
from tests.web.requesters import given_role
from web.pages.runs import activity

ENTRY = re.compile(r"<span>(line \d+)</span>")
TRAIL = "/runs/proverbs/trail/"
ACTIONS = [  # address below the run, form, line in the trail, whether the line is public
    ("manage/", {"action": "pause"}, "paused the run.", True),
    ("manage/", {"action": "resume"}, "resumed the run.", True),
    ("extend/", {"target_steps": "200"}, "extended the run: 200 steps instead of 100.", True),
    ("announce/", {"text": "Hello"}, "announced “\u2068Hello\u2069”", True),
    ("announce/", {"text": ""}, "removed the announcement.", False),
    ("alerts/", {"machines": "3"}, "set an alert for fewer than 3 machines.", False),
    ("alerts/", {"machines": ""}, "turned off the alert for few machines.", False),
    ("edit/", {"title": "Riddles", "purpose": "", "visibility": "public"}, "changed the description.", True),
    ("members/", {"name": "Noor"}, "added Noor.", False),
    ("removed/", {"remove-name": "Noor"}, "removed Noor.", False),
    ("removed/{member}/", {}, "let Noor back in.", False),
    ("roles/", {"role-name": "Noor", "role-role": "moderator"}, "invited Noor to be a moderator.", False),
    ("roles/{role}/", {}, "withdrew Noor's invitation as moderator.", False),
    ("invitations/", {"most_uses": "10", "lifetime": ""}, "created an invitation link for 10 people.", False),
    ("invitations/{invitation}/", {}, "revoked the invitation link created ", False),
    ("finish/", {}, "is ending the run at step 1", True),
]


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


def test_consecutive_steps_are_folded(run: Run, client: Client) -> None:
    ActivityLine.objects.filter(run=run).delete()
    for step in (1, 2, 1_003):
        add_line(run=run, kind=STEP, text=f"step {step:,}: 2 machines, 4 samples, loss 5.000")
    add_line(run=run, kind="joined", text="Teo joined", names=["Teo"])
    add_line(run=run, kind=STEP, text="step 1,004: 2 machines, 4 samples, loss 5.000")
    text = page(client.get("/runs/proverbs/activity/"))
    assert text.count("<details><summary>Steps 1 to 1,003</summary>") == 1
    assert text.count("<details>") == 1
    assert text.index("step 1,004") < text.index(" joined</span>") < text.index("step 1,003")
    assert "<details>" not in page(client.get("/runs/proverbs/activity/?show=steps"))


def test_milestones_come_from_the_log(run: Run, client: Client, laptop: Owned, stranger: Person) -> None:
    other = owned(stranger).machine
    begin = timezone.now() - timedelta(hours=1)
    for step in range(1, 51):
        parts = [(laptop.machine, 4), (other, 4)] if step > 30 else [(laptop.machine, 4)]
        entry = committed(run, *parts)
        LogEntry.objects.filter(pk=entry.pk).update(at=begin + timedelta(seconds=step))
    for step, loss in ((10, 7.0), (20, 6.0), (40, 4.5), (50, 4.75)):
        at = begin + timedelta(seconds=step, milliseconds=1)
        facts = {"state_digest": "", "file": f"{step}", "size": 1, "heldout_loss": loss, "created_at": at}
        Snapshot.objects.create(run=run, index=step, step=step, **facts)
    text = page(client.get("/runs/proverbs/activity/?show=milestones"))
    shown = re.findall(r'<li class="milestone">.*?<span>(.*?)</span></li>', text)
    told = [re.sub("<[^>]+>", "", each).strip() for each in shown]
    assert told == [
        "Half of all 100 steps are done.",
        "Best held-out loss so far: 4.50, at step 40",
        "First samples: Noor",
        "A quarter of all 100 steps is done.",
        "Better than guessing by frequency: held-out loss 6.00, baseline 6.10",
        "The first step is done. First samples: Teo",
    ]
    assert page(client.get("/runs/proverbs/activity/")).count('<li class="milestone">') == len(told)
    assert 'milestone"' not in page(client.get("/runs/proverbs/activity/?show=people"))


def test_a_milestone_is_on_one_page(busy: Run, client: Client, laptop: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PAGE", 2)
    entry = committed(busy, (laptop.machine, 4))
    third = busy.activity.order_by("pk")[2]
    LogEntry.objects.filter(pk=entry.pk).update(at=third.at)
    found, path = [], "/runs/proverbs/activity/?show="
    while path:
        text = page(client.get(path))
        found.append(text.count("The first step is done."))
        older = re.search(r'href="(\?show=&amp;before=\d+)"', text)
        path = f"/runs/proverbs/activity/{older[1]}".replace("&amp;", "&") if older else ""
    assert found == [0, 1, 0]


@pytest.mark.parametrize("before", ["-1", "x", "9" * 5000, "\0", "0"])
def test_a_page_that_is_not_there_is_empty(busy: Run, client: Client, before: str) -> None:
    assert client.get("/runs/proverbs/activity/", {"before": before}).status_code == 200


def test_every_kind_is_in_a_group(busy: Run) -> None:
    """Every filter would hide a kind that has no group."""
    kinds = [kind for group in GROUPS.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    source = "".join(path.read_text() for path in _sources())
    # "rollback" is the kind of a log entry
    said = set(re.findall(r'(?:Note\(|kind=)"([a-z -]+)"', source)) - {"rollback"}
    assert {"step", "void", "paused", "silent"} <= said | set(kinds)
    assert said <= set(kinds)


def _sources() -> list[Path]:
    root = Path(__file__).parents[4]
    places = ("peer_agent/protocol/coordinator", "platform/runs", "platform/coordination")
    return [path for place in places for path in (root / place).rglob("*.py")]


class TestFeed:
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


@pytest.mark.usefixtures("stranger")
def test_each_public_or_private_action_names_its_author(run: Run, laptop: Owned, volunteer: Person) -> None:
    committed(run, (laptop.machine, 4))
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    client = as_(volunteer)
    for place, fields, told, is_public in ACTIONS:
        last = {
            "{member}": membership.removed_from(run).first(),
            "{role}": RunRole.objects.order_by("pk").last(),
            "{invitation}": run.invitations.last(),
        }
        for gap, row in last.items():
            place = place.replace(gap, str(row.pk) if row else "")  # noqa: PLW2901
        assert client.post(f"/runs/proverbs/{place}", fields).status_code in (200, 302), place
        line = trail_of(run)[0]
        assert line.text.startswith(f"Teo {told}")
        assert (line.by, line.by_role) == (volunteer, "co-organizer")
        assert (line.on.username if line.on else "") == ("Noor" if "Noor" in told else "")
        assert (line.text in page(Client().get("/runs/proverbs/activity/"))) is is_public, told


def test_what_is_done_to_a_draft_has_one_too(organizer: Person, volunteer: Person) -> None:
    run = draft(organizer)
    given_role(run, volunteer, Run.Role.CO_ORGANIZER)
    client = as_(volunteer)
    client.post("/runs/proverbs/edit/", filled(context="16", licence="CC0", text=None))
    assert trail_of(run).filter(text="Teo changed the recipe.").get().by == volunteer
    Run.objects.update(state=Run.State.DRAFT)
    run.dataset.state = "ready"
    run.dataset.save()
    client.post(MANAGE, {"action": "open", "seen": understood(run.dataset)})
    line = trail_of(run).get(text="Teo published the run.")
    assert (line.by, line.is_internal) == (volunteer, True)


def test_operators_are_named_in_the_trail_and_not_in_public(run: Run, organizer: Person, operator: Person) -> None:
    fields = {"title": "Riddles", "purpose": "", "visibility": "unlisted"}
    as_(operator).post(f"/admin/runs/run/{run.pk}/change/", fields)
    text = page(as_(organizer).get(TRAIL))
    assert '<bdi>Ines</bdi> <span class="quiet">(operator)</span> changed the description.' in text
    assert ' now. <span class="quiet">(<bdi>Ines</bdi>, operator)</span>' in text
    public = page(Client().get("/runs/proverbs/activity/"))
    assert "An operator of this site changed the description." in public
    assert "Ines" not in public


def test_it_is_for_those_who_manage_the_run(run: Run, organizer: Person, volunteer: Person, stranger: Person) -> None:
    given_role(run, volunteer, Run.Role.MODERATOR)
    for person in (volunteer, stranger):
        assert as_(person).get(TRAIL).status_code == 403
    assert Client().get(TRAIL)["Location"].startswith("/login/")
    answer = as_(organizer).get(TRAIL)
    assert "no-store" in answer["Cache-Control"]
    text = page(answer)
    assert "invited Teo to be a moderator." in text
    assert "<bdi>Amina</bdi>" in text
    assert TRAIL in page(as_(organizer).get(MANAGE))
    assert TRAIL not in page(as_(volunteer).get(MANAGE))


def test_a_name_does_not_outlive_its_account(run: Run, organizer: Person, volunteer: Person) -> None:
    given_role(run, volunteer, Run.Role.MODERATOR)
    name = volunteer.username
    membership.remove_person(run=run, name=name)
    membership.let_back(member=run.members.get())
    as_(volunteer).post("/account/delete/", {"name": name, "password": "seven calm otters"})
    text = page(as_(organizer).get(TRAIL))
    assert name not in text
    assert "former-volunteer" not in text
    assert "<bdi>a former volunteer</bdi>" in text
    assert "accepted to be a moderator." in text


def test_it_has_pages(run: Run, organizer: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.pages.runs.activity.TRAIL_PAGE", 2)
    for number in range(5):
        add_action(run=run, kind="edited", action=f"changed number {number}.")
        add_line(run=run, kind="joined", text="Teo joined")
    client, seen, place = as_(organizer), "", TRAIL
    for _ in range(3):
        text = page(client.get(place))
        seen += text
        older = re.search(r'href="(\?before=\d+)"', text)
        place = TRAIL + (older[1] if older else "")
    assert older is None
    found = [f"changed number {number}." for number in (4, 3, 2, 1, 0)]
    assert [seen.count(each) for each in found] == [1] * 5
    assert sorted(found, key=seen.index) == found
    assert "joined" not in seen
    assert "Nothing earlier." in page(client.get(f"{TRAIL}?before=1"))
    for wrong in ("x", "²", "9" * 30, "-1"):
        assert client.get(TRAIL, {"before": wrong}).status_code == 200
