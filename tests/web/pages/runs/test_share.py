"""Parts of a run that other sites show: badge, embedded frame, CSV file and preview image."""

import csv
import io
import math
import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
import segno
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from accounts.models import Person
from coordination.models import Presence
from peer_agent.plot import ACCENT, INK, PAPER, SOFT
from runs.models import LogEntry, Run
from runs.selectors import Measured, Point
from tests.runs.factories import Owned, committed, opened
from tests.web.browsing import as_, page
from web.pages.runs import share
from web.pages.runs.share import badge_svg
from web.run_picture.image import Shown, curve_png

SIZE = (1200, 630)
CURVE = [Point(step, 8 - step / 100) for step in range(1, 401)]
HELD = [Measured(200, 200, 6.3, datetime(2026, 11, 21, tzinfo=UTC))]


def test_a_badge_says_state_and_step(run: Run, laptop: Owned, client: Client) -> None:
    answer = client.get("/runs/proverbs/badge.svg")
    assert (answer["Content-Type"], answer["Cache-Control"]) == ("image/svg+xml", "max-age=60")
    assert "waiting for volunteers · step 0 of" in answer.content.decode()
    committed(run, (laptop.machine, 4))
    member = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
    Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[member])
    known = {"If-None-Match": answer["ETag"]}
    answer = client.get("/runs/proverbs/badge.svg", headers=known)
    assert answer.status_code == 200, "it is another one"
    assert "running · step 1 of" in answer.content.decode()
    known = {"If-None-Match": answer["ETag"]}
    assert client.get("/runs/proverbs/badge.svg", headers=known).status_code == 304
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
    assert "finished · 1 step<" in client.get("/runs/proverbs/badge.svg").content.decode()


def test_badge_asks_for_volunteers_only_when_they_are_missing(run: Run, client: Client) -> None:
    member = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
    Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[member])
    Run.objects.filter(pk=run.pk).update(waiting_for="no relay is connected")
    text = client.get("/runs/proverbs/badge.svg").content.decode()
    assert "waiting · step 0 of" in text
    assert "volunteers" not in text


@pytest.mark.parametrize("words", ["draft · step 0 of 1", "waiting for volunteers · step 1,000,000 of 10,000,000"])
def test_a_badge_is_a_picture_that_holds_its_words(words: str) -> None:
    tree = ET.fromstring(badge_svg(words))
    width = int(tree.attrib["width"])
    texts = [each for each in tree.iter() if each.tag.endswith("}text")]
    assert [each.text for each in texts] == ["manyhands", words]
    assert max(int(each.attrib["x"]) + int(each.attrib["textLength"]) for each in texts) < width


def test_a_badge_costs_few_questions(run: Run, client: Client, django_assert_max_num_queries: object) -> None:
    """A hundred thousand readers may load the badge."""
    with django_assert_max_num_queries(3):  # type: ignore[operator]
        client.get("/runs/proverbs/badge.svg")


def test_embedded_frame_shows_the_curve_or_the_leaderboard(run: Run, laptop: Owned, client: Client) -> None:
    for loss in (6.0, 5.0):
        committed(run, (laptop.machine, 4), loss=loss)
    answer = client.get("/runs/proverbs/embed/")
    assert "X-Frame-Options" not in answer
    assert "frame-ancestors *" in answer["Content-Security-Policy"]
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    text = page(answer)
    assert "<svg" in text
    assert "Training loss" in text
    assert "<script" not in text
    text = page(client.get("/runs/proverbs/embed/?show=leaderboard"))
    assert "Teo</span></td>" in text
    assert "<svg" not in text


def test_a_frame_says_at_which_step_the_loss_was_measured(run: Run, laptop: Owned, client: Client) -> None:
    committed(run, (laptop.machine, 4))
    run.snapshots.update(heldout_loss=3.25)
    assert 'Held-out loss <span class="figure">3.25</span> at step 0' in page(client.get("/runs/proverbs/embed/"))


def test_no_other_page_is_shown_in_a_frame(run: Run, client: Client) -> None:
    answer = client.get("/runs/proverbs/")
    assert answer["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]


def test_a_run_tells_how_it_is_shared(run: Run, client: Client) -> None:
    text = page(client.get("/runs/proverbs/"))
    assert "[![Manyhands](http://testserver/runs/proverbs/badge.svg)](http://testserver/runs/proverbs/)" in text
    assert "&lt;iframe src=&quot;http://testserver/runs/proverbs/embed/&quot;" in text or (
        '&lt;iframe src="http://testserver/runs/proverbs/embed/"' in text
    )
    assert 'type="application/rss+xml"' in text


def test_every_point_and_every_held_out_loss_has_a_row(client: Client, run: Run, laptop: Owned) -> None:
    for loss in (7.0, 6.5, 6.25):
        committed(run, (laptop.machine, 4), loss=loss)
    run.log.update(learning_rate=3e-4)
    run.snapshots.update(step=2, heldout_loss=6.6)
    page = client.get("/runs/proverbs/").content.decode()
    assert 'href="/runs/proverbs/curve.csv" download' in page
    answer = client.get("/runs/proverbs/curve.csv")
    assert answer["Content-Disposition"] == 'attachment; filename="proverbs-loss.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(row["step"], row["loss"], row["heldout_loss"]) for row in rows] == [
        ("1", "7.00000", ""),
        ("2", "6.50000", ""),
        ("2", "", "6.60000"),
        ("3", "6.25000", ""),
    ]
    names = ("samples_per_s", "machines", "learning_rate", "bytes_averaged")
    assert [rows[0][name] for name in names] == ["2.667", "1", "0.0003", ""], "4 samples in 1.5 seconds"
    assert [rows[2][name] for name in names] == ["", "", "", ""]
    assert rows[0]["at"] == LogEntry.objects.get(index=1).at.isoformat(timespec="seconds")


def test_before_the_first_step_there_are_only_names_of_columns(client: Client, run: Run) -> None:
    assert client.get("/runs/proverbs/curve.csv").content == (
        b"step,loss,heldout_loss,at,samples_per_s,machines,learning_rate,bytes_averaged\n"
    )


def opened_png(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.size) == ("PNG", SIZE)
    return image.convert("RGB")


def area(image: Image.Image, ink: str, box: tuple[int, int, int, int]) -> int:
    wanted = ImageColor.getrgb(ink)
    return sum(
        count
        for count, colour in image.crop(box).getcolors(1 << 20) or []
        if isinstance(colour, tuple) and all(abs(part - want) < 12 for part, want in zip(colour, wanted, strict=True))
    )


def title_area(image: Image.Image) -> int:
    return area(image, INK, (40, 92, 700, 150))


class TestImage:
    def test_it_has_the_title_and_makes_room_for_it(self) -> None:
        titled, untitled = (
            opened_png(curve_png(Shown(CURVE, None, [], 400, 1000, title))) for title in ("Proverbs", "")
        )
        assert title_area(titled) > 500
        bar = (56, 186, 1144, 194)
        assert area(untitled, ACCENT, bar) > 1000
        assert area(titled, ACCENT, bar) == 0

    @pytest.mark.parametrize("title", ["বাংলা প্রবাদ", "نموذج الأمثال", "Proverbs বাংলা", "Ẃ", "\u200b\u2060"])
    def test_a_title_that_cannot_be_drawn_is_left_out(self, title: str) -> None:
        shown = Shown(CURVE, None, [], 400, 1000)
        assert curve_png(shown._replace(title=title)) == curve_png(shown)

    def test_who_trains_and_that_the_run_is_alive_are_seen(self) -> None:
        still = Shown(CURVE, None, [], 400, 1000, "Proverbs", "Paused")
        alive = still._replace(state="Running", is_alive=True, people="12 people on 19 machines now")
        corner, line = (700, 40, 1160, 92), (700, 186, 1160, 222)
        images = [opened_png(curve_png(shown)) for shown in (still, alive)]
        assert [area(image, ACCENT, corner) > 0 for image in images] == [False, True]
        assert [area(image, SOFT, line) > 100 for image in images] == [False, True]

    def test_it_shows_how_far_the_run_is(self) -> None:
        images = [opened_png(curve_png(Shown(CURVE, 6.1, HELD, step, 1000))) for step in (250, 500)]
        bar = (56, 186, 1144, 194)
        done = [area(image, ACCENT, bar) for image in images]
        assert done[1] == pytest.approx(2 * done[0], rel=0.01)

    def test_the_curve_falls_from_the_left_to_the_right(self) -> None:
        image = opened_png(curve_png(Shown(CURVE, None, [], 400, 1000)))
        corners = {name: area(image, ACCENT, box) for name, box in {
            "top left": (96, 210, 400, 380),
            "top right": (900, 210, 1160, 380),
            "foot right": (900, 420, 1160, 570),
        }.items()}  # fmt: skip
        assert corners["top left"] > 1000
        assert corners["foot right"] > 1000
        assert corners["top right"] == 0

    def test_held_out_losses_and_the_line_to_beat_are_drawn(self) -> None:
        plot = (300, 222, 1000, 550)
        plain, measured, levelled = (
            area(opened_png(curve_png(Shown(CURVE, entropy, held, 400, 1000))), SOFT, plot)
            for entropy, held in ((None, []), (None, HELD), (6.1, []))
        )
        assert plain == 0
        assert measured > 50
        assert levelled > 200

    @settings(max_examples=20)
    @given(
        st.lists(st.floats(0, 20) | st.just(math.nan), max_size=40),
        st.none() | st.floats(0, 20),
        st.integers(1, 10**9),
    )
    def test_whatever_the_losses_are_there_is_an_image(
        self, losses: list[float], entropy: float | None, target: int
    ) -> None:
        points = [Point(step, loss) for step, loss in enumerate(losses, start=1)]
        image = opened_png(curve_png(Shown(points, entropy, [], len(points), target)))
        assert area(image, PAPER, (0, 0, 1200, 30)) == 1200 * 30
        assert area(image, PAPER, (0, 600, 1200, 630)) == 1200 * 30


def test_a_link_to_a_run_shows_what_is_behind_it(client: Client, run: Run, laptop: Owned) -> None:
    committed(run, (laptop.machine, 4), loss=6.5)
    text = client.get(f"/runs/{run.slug}/").content.decode()
    named = dict(re.findall(r'<meta (?:property|name)="((?:og|twitter):[\w:]+)" content="([^"]*)">', text))
    assert named["og:title"] == "A model of proverbs"
    assert named["og:description"].startswith("Nobody is training right now.")
    assert named["twitter:card"] == "summary_large_image"
    assert (
        named["og:image:alt"]
        == named["twitter:image:alt"]
        == ("Training loss is 6.50 nats per token at step 1. Guessing by frequency alone would score 6.10.")
    )
    answer = client.get(named["og:image"].removeprefix("http://testserver"))
    assert answer["Content-Type"] == named["og:image:type"] == "image/png"
    opened_png(answer.content)
    assert (named["og:image:width"], named["og:image:height"]) == ("1200", "630")


PATH = "/runs/proverbs/curve.png"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    shown: list[Shown] = []

    def draw(this: Shown) -> bytes:
        shown.append(this)
        return b"image %d" % len(shown)

    monkeypatch.setattr(share, "_kept", type(share._kept)())
    monkeypatch.setattr(share, "curve_png", draw)
    return shown


def test_a_crowd_gets_one_drawing_until_something_moves(
    client: Client, run: Run, laptop: Owned, drawn: list[Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "FRESH_S", 0.0)
    first = client.get(PATH)
    assert client.get(PATH).content == b"image 1"
    assert client.get(PATH, headers={"if-none-match": first["ETag"]}).status_code == 304
    assert len(drawn) == 1
    committed(run, (laptop.machine, 4))
    assert client.get(PATH, headers={"if-none-match": first["ETag"]}).status_code == 200
    run.snapshots.update(index=1, heldout_loss=6.5)
    assert client.get(PATH).status_code == 200
    assert [(len(shown.points), len(shown.heldout)) for shown in drawn] == [(0, 0), (1, 0), (1, 1)]


def test_a_run_that_makes_a_step_a_second_is_not_drawn_as_often(
    client: Client, run: Run, laptop: Owned, drawn: list[Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(share, "monotonic", lambda: now[0])
    for _ in range(5):
        committed(run, (laptop.machine, 4))
        assert client.get(PATH).content == b"image 1"
    now[0] += share.FRESH_S
    assert client.get(PATH).content == b"image 2"
    assert [shown.step for shown in drawn] == [1, 5]


def test_who_comes_while_an_image_is_drawn_gets_the_last_one(
    client: Client, run: Run, laptop: Owned, drawn: list[Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "FRESH_S", 0.0)
    client.get(PATH)
    committed(run, (laptop.machine, 4))
    with share._pen:
        assert client.get(PATH).content == b"image 1"
    assert client.get(PATH).content == b"image 2"


def test_a_fresh_image_costs_one_question(
    client: Client, run: Run, drawn: list[Shown], django_assert_max_num_queries: object
) -> None:
    client.get(PATH)
    with django_assert_max_num_queries(1):  # type: ignore[operator]
        client.get(PATH)
    assert len(drawn) == 1


def test_images_of_many_runs_are_not_kept_for_ever(
    client: Client, organizer: Person, drawn: list[Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "MOST", 2)
    for place in range(5):
        opened(organizer, slug=f"run-{place}")
        assert client.get(f"/runs/run-{place}/curve.png").status_code == 200
    assert len(share._kept) == 2


def test_the_image_says_what_the_page_says(client: Client, run: Run, laptop: Owned, drawn: list[Shown]) -> None:
    client.get(PATH)
    assert (drawn[0].title, drawn[0].state, drawn[0].people) == (run.title, "Waiting for volunteers", "")
    committed(run, (laptop.machine, 4))
    share._kept.clear()
    client.get(PATH)
    assert drawn[1].people == "1 person on 1 machine so far"
    member = {"peer": "a" * 32, "name": "Teo", "role": "trainer", "state": "ready", "done": 0, "samples_per_s": 1.0}
    relay = member | {"peer": "b" * 32, "name": "operator", "role": "relay"}
    Presence.objects.create(run=run, phase="accumulate", done=0, target=4, members=[member, relay])
    share._kept.clear()
    client.get(PATH)
    assert (drawn[2].state, drawn[2].is_alive, drawn[2].people) == ("Running", True, "1 person on 1 machine now")


def test_site_image_counts_who_trains_in_listed_runs(run: Run, organizer: Person) -> None:
    assert share.who_trains() == ""
    hidden = opened(organizer, slug="hidden", visibility="private")
    for place, each in enumerate((run, hidden)):
        member = {"peer": f"{place}" * 32, "name": f"Teo{place}", "role": "trainer", "state": "ready", "done": 0}
        members = [member | {"samples_per_s": 1.0}]
        Presence.objects.create(run=each, phase="accumulate", done=0, target=4, members=members)
    assert share.who_trains() == "1 person on 1 machine is training 1 model now"


def test_a_private_run_shows_nothing(client: Client, run: Run) -> None:
    shown = client.get(PATH)
    Run.objects.update(visibility="private")
    assert client.get(PATH).status_code == 404
    assert client.get(PATH, headers={"if-none-match": shown["ETag"]}).status_code == 404
    assert as_(run.organizer).get(PATH).status_code == 200


def test_a_poster_leads_to_the_run(run: Run, client: Client) -> None:
    Run.objects.update(purpose="We <b>sing</b>.", starts_at=datetime(2050, 12, 5, 18, tzinfo=UTC))
    text = page(client.get("/runs/proverbs/poster/"))
    assert "A model of proverbs" in text
    assert "We &lt;b&gt;sing&lt;/b&gt;." in text
    assert "Monday 5 December 2050, 18:00 UTC</time>" in text
    assert "You need about" in text
    assert segno.make_qr("http://testserver/runs/proverbs/", error="m").svg_inline(border=0, omitsize=True) in text


def test_a_start_is_an_entry_for_a_calendar(run: Run, client: Client) -> None:
    path = "/runs/proverbs/start.ics"
    assert client.get(path).status_code == 404
    Run.objects.update(title="Proverbs,\r\nBEGIN:VTODO; all", starts_at=datetime(2050, 12, 5, 18, tzinfo=UTC))
    answer = client.get(path)
    assert answer["Content-Type"] == "text/calendar"
    lines = answer.content.decode().split("\r\n")
    assert "DTSTART:20501205T180000Z" in lines
    assert "SUMMARY:Proverbs\\, BEGIN:VTODO\\; all" in lines
    assert "URL:http://testserver/runs/proverbs/" in lines


def test_a_qr_code_is_an_svg_with_a_light_edge(run: Run, client: Client) -> None:
    answer = client.get("/runs/proverbs/qr.svg")
    assert answer["Content-Type"] == "image/svg+xml"
    size = segno.make_qr("http://testserver/runs/proverbs/", error="m").symbol_size(scale=10, border=4)
    tree = ET.fromstring(answer.content)
    assert (tree.get("width"), tree.get("height")) == tuple(map(str, size))
    assert next(tree.iter("{http://www.w3.org/2000/svg}path")).get("fill") == "#fff", "a dark slide hides no edge"


def test_a_projector_shows_the_parts_that_the_feed_renews(run: Run, laptop: Owned, client: Client) -> None:
    committed(run, (laptop.machine, 4))
    text = page(client.get("/runs/proverbs/projector/"))
    assert 'id="live" hidden data-slug="proverbs" data-standing="live|open' in text
    shown = re.findall(r'<\w+ id="part-(\w+)"', text)
    assert {"head", "loss", "written", "step"} <= set(shown)
    assert set(re.findall(r'href="(/[^"]*|http[^"]*/)"', text.partition('class="qr"')[2])) == {
        "http://testserver/runs/proverbs/"
    }
    assert "<nav" not in text.partition("part-written")[2], "nothing but the link back leads away"
