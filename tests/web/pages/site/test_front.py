"""The front page: introduction, current figures, search, and the runs. Runs that need volunteers come first."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts.days import day_of
from accounts.models import Person
from coordination.models import Presence
from coordination.presence import OnlinePeer
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.masked_lm import MaskedLM
from runs import selectors
from runs.models import DailyTotal, Run, Snapshot
from tests.runs.factories import Owned, committed, draft, opened, owned
from tests.web.browsing import as_, page
from web.pages.site import front
from web.pages.site.front import HIGH, WIDE, small_curve

NAMES = re.compile(r'<h3><a href="/runs/([-\w]+)/"')


def names(text: str) -> list[str]:
    return NAMES.findall(text)


def here(run: Run, *names: str, role: str = "trainer") -> None:
    members = [
        {"peer": f"{place}" * 32, "name": name, "role": role, "state": "ready", "done": 0, "samples_per_s": 1.0}
        for place, name in enumerate(names)
    ]
    Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=members)


class TestRuns:
    def test_those_that_need_volunteers_come_first(self, organizer: Person, client: Client) -> None:
        runs = {name: opened(organizer, slug=name) for name in ("few", "many", "paused", "alone", "done")}
        here(runs["few"], "Teo")
        here(runs["many"], "Teo", "Ida")
        here(runs["alone"], "operator", role="relay")
        Run.objects.filter(slug="paused").update(state=Run.State.PAUSED)
        Run.objects.filter(slug="done").update(state=Run.State.FINISHED)
        text = page(client.get("/"))
        assert names(text) == ["alone", "many", "few", "paused", "done"]
        assert (
            text.index("Waiting for volunteers")
            < text.index("● Teo and Ida")
            < text.index("● Teo<")
            < text.index("<h3>Finished<")
        )

    def test_drafts_are_their_organizers_alone(self, organizer: Person, client: Client) -> None:
        draft(organizer, slug="draft")
        assert names(page(client.get("/"))) == []
        assert names(page(as_(organizer).get("/"))) == ["draft"]

    def test_they_go_on_page_by_page_and_the_search_with_them(
        self, organizer: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(front, "ON_A_PAGE", 2)
        for place in range(5):
            state = Run.State.FINISHED if place < 2 else Run.State.OPEN
            opened(organizer, slug=f"run-{place}", state=state, title=f"Proverbs {place}")
        opened(organizer, slug="other", title="Riddles")
        for busy in ("run-3", "run-4"):
            here(Run.objects.get(slug=busy), "Teo")
        client, seen, path = Client(), [], "/?q=proverbs"
        while path:
            text = page(client.get(path))
            assert "<dt>person online</dt><dd>1</dd>" in " ".join(text.split()), "whatever is searched for"
            seen.append(names(text))
            older = re.search(r'href="(\?from=[^"]+)">More', text)
            path = f"/{older[1]}".replace("&amp;", "&") if older else ""
        assert seen == [["run-2", "run-4"], ["run-3", "run-1"], ["run-0"]], "whoever waits is on the first page"

    @pytest.mark.parametrize("begin", ["-1", "x", "9" * 5000, "", "99", "0"])
    def test_a_page_that_is_not_there_is_not_an_error(self, run: Run, begin: str) -> None:
        assert run.title in page(Client().get("/", {"from": begin}, follow=True))


class TestSearch:
    @pytest.fixture(autouse=True)
    def runs(self, organizer: Person) -> None:
        opened(organizer, slug="proverbs", title="Proverbs of the coast", purpose="Swahili sayings")
        opened(organizer, slug="masked", title="Words", recipe=encode_recipe(MaskedLM()).decode())
        Run.objects.filter(slug="masked").update(state=Run.State.FINISHED)

    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ({}, ["proverbs", "masked"]),
            ({"q": "coast swahili"}, ["proverbs"]),
            ({"q": "AMINA words"}, ["masked"]),
            ({"q": "50% off_"}, []),
            ({"recipe": "masked_lm"}, ["masked"]),
            ({"recipe": "causal_lm"}, ["proverbs"]),
            ({"recipe": "image_ssl"}, []),
            ({"state": "finished"}, ["masked"]),
            ({"state": "open"}, ["proverbs"]),
            ({"state": "open", "recipe": "masked_lm"}, []),
            ({"q": "a\0b", "recipe": "\0", "state": "no such", "from": "\0"}, []),
            ({"q": "x " * 10_000}, []),
        ],
    )
    def test_finds(self, client: Client, asked: dict[str, str], found: list[str]) -> None:
        answer = client.get("/", asked)
        assert answer.status_code == 200
        assert names(page(answer)) == found

    def test_what_is_not_found_is_told(self, client: Client) -> None:
        text = page(client.get("/", {"q": "<b>nothing</b>"}))
        assert "No run matches this search." in text
        assert "<b>nothing" not in text


class TestFigures:
    def test_listed_people_and_machines_count_once_without_relays(self, organizer: Person, client: Client) -> None:
        here(opened(organizer, slug="one"), "Teo", "Ida", "Teo")
        here(opened(organizer, slug="two"), "Teo")
        here(opened(organizer, slug="relays"), "operator", role="relay")
        here(opened(organizer, slug="hidden", visibility=Run.Visibility.UNLISTED), "Noor")
        text = " ".join(page(client.get("/")).split())
        assert "<dt>people online</dt><dd>2</dd>" in text
        assert "<dt>machines online</dt><dd>3</dd>" in text

    def test_samples_are_those_since_midnight(self, run: Run, laptop: Owned, client: Client) -> None:
        committed(run, (laptop.machine, 1200), (owned(run.organizer).machine, 34))
        yesterday = day_of(timezone.now() - timedelta(days=1))
        DailyTotal.objects.create(run=run, person=laptop.machine.person, day=yesterday, samples=5000)
        assert "<dt>samples today</dt><dd>1,234</dd>" in " ".join(page(client.get("/")).split())
        assert selectors.samples_today(None, timezone.now() + timedelta(days=1)) == 0

    def test_held_out_loss_leads(self, run: Run, laptop: Owned, client: Client) -> None:
        for loss in (6.0, 5.0, 4.0):
            committed(run, (laptop.machine, 4), loss=loss)
        text = page(client.get("/"))
        assert re.search(r"training loss\s*<span[^>]*>5.00<", text)
        assert 'class="small-curve"' in text
        run.snapshots.update(heldout_loss=3.25)
        assert re.search(r"held-out loss\s*<span[^>]*>3.25</span> at step 0<", page(client.get("/")))
        facts = {"state_digest": "", "size": 1, "file": "e" * 64}
        Snapshot.objects.create(run=run, index=3, step=3, heldout_loss=4.5, **facts)
        newest = re.search(r"held-out loss\s*<span[^>]*>4.50</span>(.*?)<", page(client.get("/")))
        assert newest is not None, "the newest, as on its page"
        assert "at step" not in newest[1], "it is that of the last step"

    def test_a_run_that_was_ended_early_has_a_full_bar(self, run: Run, laptop: Owned, client: Client) -> None:
        committed(run, (laptop.machine, 4))
        assert "Step 1 of" in page(client.get("/"))
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
        text = page(client.get("/"))
        assert "Ended at step 1" in text
        assert '<progress value="1" max="1"' in text

    def test_a_paused_run_has_no_machines_that_train(self, run: Run, client: Client) -> None:
        here(run, "Teo")
        Run.objects.filter(pk=run.pk).update(state=Run.State.PAUSED)
        assert "● Teo" not in page(client.get("/"))

    def test_training_loss_is_of_the_newest_steps_of_a_long_run(self, run: Run, laptop: Owned, client: Client) -> None:
        for step in range(1, 181):
            committed(run, (laptop.machine, 4), loss=1000 - step)
        found = re.search(r"training loss\s*<span[^>]*>([0-9.]+)<", page(client.get("/")))
        assert found is not None
        assert 1000 - 180 <= float(found[1]) <= 1000 - 177, "and of none that the curve is thinned to"

    @pytest.mark.parametrize(
        ("losses", "path"),
        [
            ([], ""),
            ([3.0], ""),
            ([3.0, 3.0], "M0.0 38.0L160.0 38.0"),
            ([4.0, 3.0, 2.0], "M0.0 2.0L80.0 20.0L160.0 38.0"),
        ],
    )
    def test_a_small_curve_fills_its_box(self, losses: list[float], path: str) -> None:
        assert small_curve(losses) == path
        assert (WIDE, HIGH) == (160, 40)

    def test_many_names_are_few(self) -> None:
        peers: Any = [OnlinePeer(str(place), f"P{place}", "trainer", "ready", 0, 1.0) for place in range(6)]
        assert front._here(peers[:1]) == "P0"
        assert front._here(peers[:3]) == "P0, P1 and P2"
        assert front._here(peers) == "P0, P1 and 4 others"


def test_who_comes_for_the_first_time_is_told_what_this_is(run: Run, client: Client) -> None:
    assert "Everyone gets a share" in page(client.get("/"))
    assert "Everyone gets a share" not in page(as_(run.organizer).get("/"))
    assert "Everyone gets a share" not in page(client.get("/?q=proverbs"))


def test_a_link_to_the_site_has_a_picture(client: Client, db: None) -> None:
    text = page(client.get("/"))
    assert '<meta property="og:title" content="Train AI models together">' in text
    assert '<meta property="og:image" content="http://testserver/preview.png">' in text
    assert '<meta property="og:description" content="People train AI models together' in text
    assert '<meta property="og:image:height" content="630">' in text
    image = client.get("/preview.png")
    assert (image["Content-Type"], image.content[:8]) == ("image/png", b"\x89PNG\r\n\x1a\n")
    assert len(image.content) < 60_000
