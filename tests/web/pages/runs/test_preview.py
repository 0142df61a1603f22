"""What stands beside a link to a run on other sites: words, and a PNG that is drawn once for every state."""

import io
import math
import re
from datetime import UTC, datetime

import pytest
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from peer_agent.plot.palette import ACCENT, SHEET, SOFT
from runs.models import Run
from runs.selectors import Measured, Point
from tests.runs.factories import Owned, committed
from web.pages.runs import preview
from web.run_picture.curve_image import Shown, curve_png

SIZE = (1200, 630)
CURVE = [Point(step, 8 - step / 100) for step in range(1, 401)]
HELD = [Measured(200, 200, 6.3, datetime(2026, 11, 21, tzinfo=UTC))]


def opened_png(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.size) == ("PNG", SIZE)
    return image.convert("RGB")


def area(image: Image.Image, ink: str, box: tuple[int, int, int, int]) -> int:
    """Pixels of about an ink within a box."""
    wanted = ImageColor.getrgb(ink)
    return sum(
        count
        for count, colour in image.crop(box).getcolors(1 << 20) or []
        if isinstance(colour, tuple) and all(abs(part - want) < 12 for part, want in zip(colour, wanted, strict=True))
    )


class TestImage:
    def test_it_shows_how_far_the_run_is(self) -> None:
        images = [opened_png(curve_png(Shown(CURVE, 6.1, HELD, step, 1000))) for step in (250, 500)]
        bar = (56, 148, 1144, 156)
        done = [area(image, ACCENT, bar) for image in images]
        assert done[1] == pytest.approx(2 * done[0], rel=0.01)

    def test_the_curve_falls_from_the_left_to_the_right(self) -> None:
        image = opened_png(curve_png(Shown(CURVE, None, [], 400, 1000)))
        corners = {name: area(image, ACCENT, box) for name, box in {
            "top left": (96, 180, 400, 360),
            "top right": (900, 180, 1160, 360),
            "foot right": (900, 400, 1160, 560),
        }.items()}  # fmt: skip
        assert corners["top left"] > 1000
        assert corners["foot right"] > 1000
        assert corners["top right"] == 0

    def test_held_out_losses_and_the_line_to_beat_are_drawn(self) -> None:
        plot = (300, 190, 1000, 540)
        plain, measured, levelled = (
            area(opened_png(curve_png(Shown(CURVE, entropy, held, 400, 1000))), SOFT, plot)
            for entropy, held in ((None, []), (None, HELD), (6.1, []))
        )
        assert plain == 0
        assert measured > 50
        assert levelled > 200

    @settings(max_examples=20, deadline=None)
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
        assert area(image, SHEET, (0, 0, 1200, 30)) == 1200 * 30
        assert area(image, SHEET, (0, 600, 1200, 630)) == 1200 * 30


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
        == (
            "Loss is 6.50 nats per token at step 1. "
            "That is above 6.10, what guessing by frequency alone would cost (unigram)."
        )
    )
    answer = client.get(named["og:image"].removeprefix("http://testserver"))
    assert answer["Content-Type"] == named["og:image:type"] == "image/png"
    opened_png(answer.content)
    assert (named["og:image:width"], named["og:image:height"]) == ("1200", "630")


def test_a_crowd_gets_one_drawing_until_something_moves(
    client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Shown] = []

    def draw(shown: Shown) -> bytes:
        drawn.append(shown)
        return b"image"

    monkeypatch.setattr(preview, "curve_png", draw)
    path = f"/runs/{run.slug}/curve.png"
    first = client.get(path)
    assert client.get(path).content == b"image"
    assert client.get(path, headers={"if-none-match": first["ETag"]}).status_code == 304
    assert len(drawn) == 1
    committed(run, (laptop.machine, 4))
    assert client.get(path, headers={"if-none-match": first["ETag"]}).status_code == 200
    run.snapshots.update(index=1, heldout_loss=6.5)
    assert client.get(path).status_code == 200
    assert [(len(shown.points), len(shown.heldout)) for shown in drawn] == [(0, 0), (1, 0), (1, 1)]


def test_images_of_many_states_are_not_kept_for_ever(
    client: Client, run: Run, laptop: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "_kept", {})
    monkeypatch.setattr(preview, "MOST", 2)
    for _ in range(5):
        committed(run, (laptop.machine, 4))
        assert client.get(f"/runs/{run.slug}/curve.png").status_code == 200
    assert len(preview._kept) <= 2


def test_a_private_run_shows_nothing(client: Client, run: Run) -> None:
    Run.objects.update(visibility="private")
    assert client.get(f"/runs/{run.slug}/curve.png").status_code == 404
