"""The front page: introduction, current figures, search, and the runs. Runs in training come first."""

import math
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
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.masked_lm import MaskedLM
from runs import selectors
from runs.models import DailyTotal, Release, Run, Snapshot
from runs.selectors import Point
from tests.runs.factories import Owned, committed, draft, opened, owned
from tests.web.browsing import as_, page
from web.pages.site import front
from web.pages.site.front import HIGH, WIDE, small_curve
from web.pages.site.showcase import MADE, first_line

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
    def test_those_training_now_come_first(self, organizer: Person, client: Client) -> None:
        runs = {name: opened(organizer, slug=name) for name in ("few", "many", "paused", "alone", "done")}
        here(runs["few"], "Teo")
        here(runs["many"], "Teo", "Ida")
        here(runs["alone"], "operator", role="relay")
        Run.objects.filter(slug="paused").update(state=Run.State.PAUSED)
        Run.objects.filter(slug="done").update(state=Run.State.FINISHED)
        text = page(client.get("/"))
        assert names(text) == ["many", "few", "alone", "paused", "done"]
        assert re.findall("<h3>([^<]+)</h3>", text[text.index('id="runs"') :]) == [
            "Training now",
            "Waiting",
            "Paused, preparing, finishing or failed",
            "Finished",
        ]
        assert (
            text.index(">Teo and Ida<", text.index('id="runs"'))
            < text.index(">Teo<", text.index('id="runs"'))
            < text.index("Waiting for volunteers", text.index('id="runs"'))
            < text.index("<h3>Finished<")
        )

    def test_a_run_whose_release_failed_is_marked_as_failed(self, run: Run, client: Client) -> None:
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHING)
        Release.objects.create(run=run, state=Release.State.FAILED, fault=str(Fault.of("E328")))
        assert '<span class="badge failed">Failed</span>' in page(client.get("/"))

    def test_a_stuck_run_is_last_in_its_group_and_not_the_hero(
        self, run: Run, organizer: Person, client: Client
    ) -> None:
        opened(organizer, slug="healthy")
        here(run, "Teo", "Ida")
        Run.objects.filter(pk=run.pk).update(opened_at=timezone.now() - timedelta(hours=3))
        Presence.objects.update(crowd=[[(timezone.now() - timedelta(hours=3)).timestamp(), 2]])
        text = page(client.get("/"))
        assert "Stuck" not in stage(text)
        assert names(text)[-2:] == ["healthy", run.slug]

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
            seen.append(names(text))
            older = re.search(r'href="(\?from=[^"]+)">More', text)
            path = f"/{older[1]}".replace("&amp;", "&") if older else ""
        assert seen == [["run-4", "run-3"], ["run-2", "run-1"], ["run-0"]]

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
        assert "Online now: 2 people on 3 machines" in page(client.get("/"))

    def test_samples_and_people_of_all_public_runs_are_counted(self, run: Run, laptop: Owned, client: Client) -> None:
        committed(run, (laptop.machine, 1200), (owned(run.organizer).machine, 34))
        yesterday = day_of(timezone.now() - timedelta(days=1))
        DailyTotal.objects.create(run=run, person=laptop.machine.person, day=yesterday, samples=5000)
        text = page(client.get("/"))
        assert '<span class="figure">1,234</span>' in text
        assert "samples given by 2 people so far</span>" in text, "all of them today, as a first day has it"
        DailyTotal.objects.filter(samples=34).delete()
        assert "samples given by 2 people so far, 1,200 of them today" in page(client.get("/"))
        assert selectors.samples_today(None, timezone.now() + timedelta(days=1)) == 0

    def test_held_out_loss_leads(self, run: Run, laptop: Owned, client: Client) -> None:
        for loss in (6.0, 5.0, 4.0):
            committed(run, (laptop.machine, 4), loss=loss)
        text = page(client.get("/"))
        assert re.search(r"Training loss\s*<span[^>]*>5.00<", text)
        assert 'class="small-curve"' in text
        run.snapshots.update(heldout_loss=3.25)
        assert re.search(r"Held-out loss\s*<span[^>]*>3.25</span> at step 0<", page(client.get("/")))
        facts = {"state_digest": "", "size": 1, "file": "e" * 64}
        Snapshot.objects.create(run=run, index=3, step=3, heldout_loss=4.5, **facts)
        newest = re.search(r"Held-out loss\s*<span[^>]*>4.50</span>(.*?)<", page(client.get("/")))
        assert newest is not None, "the newest, as on its page"
        assert "at step" not in newest[1], "it is that of the last step"

    def test_a_run_that_was_ended_early_says_so(self, run: Run, laptop: Owned, client: Client) -> None:
        committed(run, (laptop.machine, 4))
        assert "Step 1 of" in page(client.get("/"))
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
        text = page(client.get("/"))
        assert "Ended at step 1" in text

    def test_a_paused_run_has_no_machines_that_train(self, run: Run, client: Client) -> None:
        here(run, "Teo")
        Run.objects.filter(pk=run.pk).update(state=Run.State.PAUSED)
        assert ">Teo<" not in page(client.get("/"))

    @pytest.mark.parametrize(("steps", "pace_s"), [(1, None), (9, 200.0)])
    def test_a_stuck_run_is_not_said_to_train(
        self, run: Run, laptop: Owned, client: Client, steps: int, pace_s: float | None
    ) -> None:
        here(run, "Teo")
        for step in range(1, steps + 1):
            committed(run, (laptop.machine, 4))
            before = timedelta(seconds=(pace_s or 0) * (steps - step))
            run.log.filter(step=step).update(at=timezone.now() - timedelta(hours=2) - before)
        assert "Learning now" in page(client.get("/"))
        Presence.objects.update(crowd=[[(timezone.now() - timedelta(hours=3)).timestamp(), 1]])
        text = page(client.get("/"))
        assert f"Stuck at step {steps + 1} since" in stage(text)
        runs = text[text.index('id="runs"') :]
        assert '<span class="badge stuck">Stuck</span>' in runs
        for words in ("Learning now", "working on step", 'class="badge running"'):
            assert words not in text
        assert '<span class="now">Teo' not in runs

    def test_training_loss_is_of_the_newest_steps_of_a_long_run(self, run: Run, laptop: Owned, client: Client) -> None:
        for step in range(1, 181):
            committed(run, (laptop.machine, 4), loss=1000 - step)
        found = re.search(r"Training loss\s*<span[^>]*>([0-9.]+)<", page(client.get("/")))
        assert found is not None
        assert 1000 - 180 <= float(found[1]) <= 1000 - 177, "and of none that the curve is thinned to"

    @pytest.mark.parametrize(
        ("losses", "last", "path"),
        [
            ([], 4, ""),
            ([3.0], 4, ""),
            ([3.0, math.nan], 4, ""),
            ([3.0, 3.0], 2, "M0.0 46.0L160.0 46.0"),
            ([4.0, 3.0, 2.0], 3, "M0.0 2.0L80.0 24.0L160.0 46.0"),
            ([4.0, 3.0, 2.0], 5, "M0.0 2.0L40.0 24.0L80.0 46.0"),
            ([4.0, 3.0, 2.0], 500, "M0.0 2.0L32.0 24.0L64.0 46.0"),
        ],
    )
    def test_a_small_curve_is_as_wide_as_its_progress(self, losses: list[float], last: int, path: str) -> None:
        assert small_curve([Point(step, loss) for step, loss in enumerate(losses, 1)], last) == path
        assert (WIDE, HIGH) == (160, 48)

    def test_many_names_are_few(self) -> None:
        peers: Any = [OnlinePeer(str(place), f"P{place}", "trainer", "ready", 0, 1.0) for place in range(6)]
        assert front._here(peers[:1]) == "P0"
        assert front._here(peers[:3]) == "P0, P1 and P2"
        assert front._here(peers) == "P0, P1 and 4 others"


def stage(text: str) -> str:
    """Return the top of the front page, above the list of runs."""
    return text.partition('<div class="stage night">')[2].partition('id="runs"')[0]


class TestHero:
    def test_busiest_public_run_is_on_stage(self, organizer: Person, client: Client) -> None:
        runs = {name: opened(organizer, slug=name, title=name.title()) for name in ("quiet", "busy", "private", "asks")}
        here(runs["quiet"], "Teo")
        here(runs["busy"], "Teo", "Ida")
        here(runs["private"], "Teo", "Ida", "Noor")
        here(runs["asks"], "Teo", "Ida", "Noor")
        Run.objects.filter(slug="private").update(visibility=Run.Visibility.PRIVATE)
        Run.objects.filter(slug="asks").update(visibility=Run.Visibility.REQUEST)
        for each in (client, as_(organizer)):
            shown = stage(page(each.get("/")))
            assert '<h2 id="hero" class="large"><a href="/runs/busy/"><bdi>Busy' in shown
            assert "Private" not in shown
            assert "2 people on 2 machines are working on step 1." in shown
            assert 'href="/runs/busy/#join"' in shown

    def test_without_machines_the_newest_open_run_waits_on_stage(self, organizer: Person, client: Client) -> None:
        for place, name in enumerate(("old", "new", "paused")):
            begun = timezone.now() + timedelta(minutes=place)
            opened(organizer, slug=name, opened_at=begun, state="paused" if name == "paused" else "open")
        shown = stage(page(client.get("/")))
        assert '<h2 id="hero" class="large"><a href="/runs/new/">' in shown
        assert "Waiting for volunteers" in shown
        assert 'class="yours"' in shown, "a stroke for the reader"

    def test_a_run_whose_people_wait_for_its_start_is_not_learning(self, organizer: Person, client: Client) -> None:
        run = opened(organizer, starts_at=timezone.now() + timedelta(days=1), waiting_for="its start")
        here(run, "Teo", "Ida")
        shown = stage(page(client.get("/")))
        assert "2 people are ready." in shown
        assert "Learning now" not in shown

    def test_its_people_curve_and_newest_sentence_are_real(self, run: Run, laptop: Owned, client: Client) -> None:
        for loss in (6.0, 5.0, 4.0):
            committed(run, (laptop.machine, 4), loss=loss)
        facts = {"run": run, "state_digest": "", "size": 1}
        for step, text in ((1, " the the"), (2, " a boat.  It\nsailed away")):
            Snapshot.objects.create(index=step, step=step, file=f"{step}", written=[["Once", text]], **facts)
        here(run, "Teo", "Ida")
        shown = stage(page(client.get("/")))
        assert "<strong>Once</strong> a boat. It sailed away</blockquote>" in shown
        assert "It wrote at step 2" in shown
        assert "Training loss fell from 6.00 to 4.00 nats per token." in shown
        assert re.search(r'<a class="chip tint-\d" href="/people/Teo/">Teo</a>', shown)
        assert re.search(r'<span class="chip tint-\d">Ida</span>', shown), "nobody with a page has this name"

    def test_site_without_open_runs_says_how_it_works(self, run: Run, client: Client) -> None:
        Run.objects.update(state=Run.State.PAUSED)
        text = page(client.get("/"))
        assert "No run is looking for volunteers right now." in text
        assert "Everyone gets a share" in text
        assert names(text) == ["proverbs"]

    def test_a_search_is_answered_at_once(self, run: Run, client: Client) -> None:
        assert 'class="stage' not in page(client.get("/?q=proverbs"))


class TestTrainedHere:
    @pytest.fixture
    def done(self, run: Run, laptop: Owned) -> Run:
        committed(run, (laptop.machine, 4), (owned(run.organizer).machine, 8))
        facts = {"state_digest": "", "file": "f" * 64, "size": 1, "written": [["Dear Abba,", " the roof is holding."]]}
        Snapshot.objects.create(run=run, index=1, step=1, **facts)
        begun = timezone.now() - timedelta(hours=2)
        Run.objects.update(state=Run.State.FINISHED, opened_at=begun, finished_at=begun + timedelta(minutes=80))
        files = [{"name": "proverbs.zip", "size": 9_600_000, "sha256": ""}]
        Release.objects.create(run=run, state=Release.State.READY, index=1, step=1, archive="proverbs.zip", files=files)
        return run

    def test_model_is_shown_with_what_it_wrote(self, done: Run, client: Client) -> None:
        text = page(client.get("/"))
        assert "<strong>Dear Abba,</strong> the roof is holding.</blockquote>" in text
        assert "2 people in 80 min · 64 parameters, 9.6 MB" in text
        assert 'href="/runs/proverbs/#try">Try it<' in text
        assert 'href="/api/v1/runs/proverbs/release/proverbs.zip">Download<' in text

    def test_model_that_visitors_may_not_try_is_only_downloaded(self, done: Run, client: Client) -> None:
        Run.objects.update(can_be_tried=False)
        text = page(client.get("/"))
        assert "Download<" in text
        assert "#try" not in text

    @pytest.mark.parametrize("visibility", [Run.Visibility.PRIVATE, Run.Visibility.UNLISTED])
    def test_private_models_stay_private(self, done: Run, client: Client, visibility: str) -> None:
        Run.objects.update(visibility=visibility)
        for each in (client, as_(done.organizer)):
            text = page(each.get("/"))
            assert "Dear Abba" not in text
            assert 'id="made"' not in text
            assert '<p class="total">' not in text, "its samples are not counted"

    def test_only_the_newest_are_shown(self, done: Run, client: Client) -> None:
        for place in range(MADE):
            finished = {"state": Run.State.FINISHED, "finished_at": timezone.now() + timedelta(minutes=place)}
            run = opened(done.organizer, slug=f"run-{place}", **finished)
            Release.objects.create(run=run, state=Release.State.READY, sample=f"Sample {place}")
        text = page(client.get("/"))
        assert [f"Sample {place}" in text for place in range(MADE)] == [True] * MADE
        assert "Dear Abba" not in text
        assert 'href="/?state=finished">All finished runs' in text


def test_front_page_with_everything_stays_cheap(
    run: Run, laptop: Owned, django_assert_max_num_queries: Any, client: Client
) -> None:
    committed(run, (laptop.machine, 4))
    here(run, "Teo")
    for place in range(2 * MADE):
        made = opened(run.organizer, slug=f"run-{place}", state=Run.State.FINISHED)
        committed(made, (laptop.machine, 4))
        Release.objects.create(run=made, state=Release.State.READY, sample="A sample")
    with django_assert_max_num_queries(15):
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("prompt", "text", "line"),
    [
        ("", "", None),
        ("Once", "  \n", None),
        ("Once\nmore", " upon\n\n a time", ("Once more", " upon a time")),
        ("Once", " upon\ufffd a\n\ufffd\n time\ufffd", ("Once", " upon a time")),
        ("", "Short. " * 40, ("", ("Short. " * 25).strip())),
        ("", " " + "x" * 400, ("", " " + "x" * 179 + "…")),
        ("", "word, " * 40, ("", ("word, " * 30).rstrip(", ") + "…")),
    ],
)
def test_a_text_is_cut_where_a_sentence_ends(prompt: str, text: str, line: object) -> None:
    assert first_line([[prompt, text]]) == line


class TestEmptySite:
    def test_visitor_is_led_to_log_in(self, db: None, client: Client) -> None:
        text = page(client.get("/"))
        assert 'href="/login/?next=/runs/new/">Log in to create a run<' in text
        assert "Everyone gets a share" in text
        assert 'id="runs"' not in text, "there is nothing to search"

    def test_member_is_led_to_a_new_run(self, volunteer: Person) -> None:
        text = page(as_(volunteer).get("/"))
        assert 'class="button main" href="/runs/new/">New run<' in text


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
