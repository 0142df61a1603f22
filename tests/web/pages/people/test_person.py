"""A contributor's page: public, or hidden by its owner, with sums that are correct down to each round."""

import re
from io import BytesIO
from typing import Any

import pytest
import segno
from django.core.cache import cache
from django.test import Client
from PIL import Image

from accounts.days import date_of
from accounts.models import Person
from accounts.services import relay_keeper
from coordination.models import Presence
from runs.models import Run
from tests.runs.factories import Owned, committed, opened, owned
from tests.web.browsing import as_, page
from web.pages.people.person import WEEKS, days_of, first_day, per_day, summary
from web.run_picture.image import figure_png
from web.run_picture.picture import tint_of

TODAY = 20_421  # 29 November 2025, a Saturday


@pytest.fixture
def run(organizer: Person, laptop: Owned) -> Run:
    run = opened(organizer)
    for _ in range(3):
        committed(run, (laptop.machine, 1000))
    return run


@pytest.fixture
def address(volunteer: Person) -> str:
    return f"/people/{volunteer.username}/"


def test_it_says_what_somebody_gave(run: Run, client: Client, address: str, volunteer: Person) -> None:
    shown = page(client.get(address))
    assert f"<span>{volunteer.username}</span></h1>" in shown
    assert "Contributed 3,000 samples to 1 AI model." in shown
    assert "100%" in shown
    assert re.search(r"<strong>1,000 samples</strong>", shown)
    assert "Next milestone: 10,000 samples (7,000 to go)." in shown
    assert "The first samples came today (UTC)." in shown
    assert f'<meta property="og:title" content="{volunteer.username}">' in shown
    assert f'<meta property="og:image" content="http://testserver{address}preview.png">' in shown
    assert '<meta property="og:description" content="Contributed 3,000 samples to 1 AI model.' in shown
    assert '<meta property="og:image:width" content="1200">' in shown
    assert "Everyone can see this page" not in shown
    assert "Everyone can see this page" in page(as_(volunteer).get(address))


def test_whoever_gave_nothing_has_a_page_that_says_so(client: Client, address: str, volunteer: Person) -> None:
    assert "No contributions to public runs yet." in page(client.get(address))
    assert "Your first samples will appear here" in page(as_(volunteer).get(address))
    assert client.get(f"{address}certificate/").status_code == 404


def test_it_is_theirs_to_show(run: Run, client: Client, address: str, volunteer: Person, stranger: Person) -> None:
    board = f"/runs/{run.slug}/leaderboard/"
    link = f'<a class="chip tint-{tint_of(volunteer.username)}" href="{address}">'
    assert link in page(client.get(board))
    mine = as_(volunteer)
    assert mine.post("/account/page/", {"public": "0"})["Location"] == "/account/?done=page"
    for part in ("", "preview.png", "certificate/", f"runs/{run.slug}/"):
        assert client.get(address + part).status_code == 404
        assert as_(stranger).get(address + part).status_code == 404
        assert mine.get(address + part).status_code == 200
    assert f'href="{address}"' not in page(client.get(board))
    assert "Only you can see this page." in page(mine.get(address))
    mine.post("/account/page/", {"public": "1"})
    assert client.get(address).status_code == 200


def test_nobody_has_no_page(client: Client, address: str, volunteer: Person) -> None:
    assert client.get("/people/nobody/").status_code == 404
    assert client.get(f"/people/{relay_keeper().username}/").status_code == 404
    Person.objects.filter(pk=volunteer.pk).update(is_active=False)
    assert client.get(address).status_code == 404


def test_every_step_is_there_a_few_at_a_time(run: Run, client: Client, address: str, laptop: Owned) -> None:
    entries = [committed(run, (laptop.machine, 7)) for _ in range(25)]
    rounds = f"{address}runs/{run.slug}/"
    newest = page(client.get(rounds))
    assert newest.count("<tr><td") == 25
    assert "Teo's work, step by step" in newest
    assert "3,175 samples in 28 steps, 100% of all that the run has seen. All on <bdi>laptop</bdi>." in newest
    assert entries[-1].digest[:12] in newest
    older = re.search(r'href="(\?before=\d+)"', newest)
    assert older is not None
    rest = page(client.get(rounds + older[1]))
    assert rest.count("<tr><td") == 3
    assert 'href="?before=' not in rest
    for nonsense in ("?before=x", "?before=9999999999999999999", "?before=-1", "?before=²"):
        assert client.get(rounds + nonsense).status_code == 200
    assert "No earlier steps." in page(client.get(f"{rounds}?before=0"))


def test_what_is_not_told_is_not_there(organizer: Person, laptop: Owned, client: Client, address: str) -> None:
    hidden = opened(organizer, slug="not-listed", visibility="unlisted")
    committed(hidden, (laptop.machine, 5))
    assert "not-listed" not in page(client.get(address))
    assert client.get(f"{address}runs/not-listed/").status_code == 404
    assert client.get(f"{address}certificate/").status_code == 404


def test_a_certificate_names_models_and_days(run: Run, client: Client, address: str, volunteer: Person) -> None:
    shown = page(client.get(f"{address}certificate/"))
    assert f'<p class="name">{volunteer.username}</p>' in shown
    assert run.title in shown
    assert "3,000" in shown
    assert re.search(r"On \d+ \w+ \d{4}", shown)
    assert re.search(r"</svg>\s*Manyhands</span>", shown)
    proof = f"http://testserver{address}runs/{run.slug}/"
    assert f'href="{proof}"' in shown
    assert segno.make_qr(proof, error="m").svg_inline(border=0, omitsize=True) in shown


def test_a_certificate_is_about_one_run_and_lists_the_others(
    run: Run, client: Client, address: str, stranger: Person, laptop: Owned
) -> None:
    second = opened(run.organizer, slug="riddles", title="A model of riddles")
    last = committed(second, (laptop.machine, 10), (owned(stranger).machine, 30))
    largest = page(client.get(f"{address}certificate/"))
    assert "learned from 3,000 samples by Teo, 100% of all it has seen." in largest
    assert '<a href="?run=riddles">' in largest
    assert "other person" not in largest
    shown = page(client.get(f"{address}certificate/?run=riddles"))
    assert "is being trained by" in shown
    assert "The run from its first step so far;" in shown
    assert "and 1 other person" in shown
    assert "learned from 10 samples by Teo, 25% of all it has seen." in shown
    assert f"http://testserver{address}runs/riddles/" in shown.replace("<wbr>", "")
    assert f'<span class="digest">{last.digest[:4]} {last.digest[4:8]} ' in shown
    (own,) = re.findall(rf'<path class="tint-{tint_of("Teo")}" d="([^"]+)"', shown)
    assert own.count("M") == 25, "a quarter of all strokes"
    assert "3,000 samples by Teo" in page(client.get(f"{address}certificate/?run=no-such"))
    Run.objects.filter(pk=second.pk).update(state=Run.State.FINISHED)
    assert "was trained by" in page(client.get(f"{address}certificate/?run=riddles"))


def test_who_trains_now_is_shown(run: Run, client: Client, address: str, laptop: Owned) -> None:
    assert "Training now:" not in page(client.get(address))
    member = {"peer": laptop.machine.peer_id, "name": laptop.machine.person.username, "role": "trainer"}
    members = [{**member, "state": "ready", "done": 0, "samples_per_s": 1.0}]
    Presence.objects.create(run=run, phase="accumulate", members=members)
    assert f'Training now: <a href="/runs/{run.slug}/">' in page(client.get(address))
    Run.objects.filter(pk=run.pk).update(state=Run.State.PAUSED)
    assert "Training now:" not in page(client.get(address))


def test_the_picture_has_the_figure(run: Run, client: Client, address: str) -> None:
    answer = client.get(f"{address}preview.png")
    image = Image.open(BytesIO(answer.content))
    assert image.size == (1200, 630)
    assert answer["Content-Type"] == "image/png"
    assert len(answer.content) < 40_000
    assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 4


def test_the_picture_has_the_name_where_it_can_be_drawn() -> None:
    plain, named, foreign = (figure_png("12", "samples", "given", name) for name in ("", "Teo", "তেও"))
    assert named != plain
    assert foreign == plain


@pytest.mark.parametrize("part", ["", "preview.png", "certificate/", "runs/proverbs/"])
def test_looks_are_counted(run: Run, client: Client, address: str, settings: Any, part: str) -> None:
    settings.RATES = settings.RATES | {"looks at a run": (1, 60)}
    cache.clear()
    assert [client.get(address + part).status_code for _ in range(2)] == [200, 429]


def test_it_ends_today_and_begins_on_a_monday() -> None:
    by_day = {TODAY: 100, TODAY - 2: 50, TODAY - 1000: 10**9, TODAY + 1: 7}
    shown = per_day(by_day, TODAY)
    assert date_of(TODAY).isoformat() == "2025-11-29"
    assert date_of(first_day(by_day, TODAY)).weekday() == 0
    assert len(shown) == 7 * (WEEKS - 1) + 6, "a Saturday"
    assert list(shown[-3:]) == [50, 0, 100]
    assert sum(shown) == 150


@pytest.mark.parametrize(("begun", "ends"), [(0, ("2025-11-29", "2025-12-28")), (200, ("2025-06-02", "2025-11-29"))])
def test_the_drawing_has_a_date_at_each_end(begun: int, ends: tuple[str, str]) -> None:
    shown = days_of({TODAY: 1, TODAY - begun: 5}, TODAY, 1)
    assert (shown["first"].isoformat(), shown["last"].isoformat()) == ends


def test_a_sentence_says_it_too() -> None:
    by_day = {TODAY: 1, TODAY - 180: 5, TODAY - 181: 5, TODAY + 1: 7}
    assert summary(by_day, TODAY) == "Active on 2 of the last 181 days (UTC)."
    assert summary({TODAY: 1, TODAY - 9: 5}, TODAY) == "Active on 2 of the first 10 days (UTC)."
