"""What other sites show of a run: a badge, and a page for a frame."""

from xml.etree import ElementTree as ET

import pytest
from django.test import Client

from coordination.models import Presence
from runs.models import Run
from tests.runs.factories import Owned, committed
from tests.web.browsing import page
from web.pages.runs.share import badge_svg


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


def test_a_badge_asks_for_no_volunteers_where_something_else_is_waited_for(run: Run, client: Client) -> None:
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
    """A hundred thousand may ask."""
    with django_assert_max_num_queries(3):  # type: ignore[operator]
        client.get("/runs/proverbs/badge.svg")


def test_a_frame_on_another_site_shows_the_curve_or_the_leaderboard(run: Run, laptop: Owned, client: Client) -> None:
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
    assert "<td>Teo</td>" in text
    assert "<svg" not in text


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
