"""The page on which visitors try a released model: refusals, waiting, and the text it shows."""

import re
from typing import Any

import pytest
from django.test import Client

from runs.models import Release, Run, Trial
from runs.releases import trials
from tests.runs.factories import opened
from tests.web.browsing import as_, page

ADDRESS = "/runs/proverbs/try/"
MARKUP = "<script>alert(1)</script> \u05e9\u05dc\u05d5\u05dd"


@pytest.fixture
def released(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
    Release.objects.create(run=run, state=Release.State.READY, folder="released", step=1, archive="a.zip")
    run.refresh_from_db()
    return run


def test_a_prompt_leads_to_the_text_which_is_escaped(released: Run, client: Client) -> None:
    assert f'action="{ADDRESS}"' in page(client.get("/runs/proverbs/"))
    answer: Any = client.post(ADDRESS, {"prompt": MARKUP + "\r\nagain"})
    trial = Trial.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"{ADDRESS}{trial.pk}/")
    assert trial.prompt == MARKUP + "\nagain"
    waits = client.get(answer["Location"])
    assert "The model is writing." in page(waits)
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in page(waits)
    assert "no-store" in waits["Cache-Control"]
    Trial.objects.update(text=" <i>and</i> more", slot=None, is_whole=False)
    text = page(client.get(answer["Location"]))
    assert "&lt;script&gt;alert(1)&lt;/script&gt; \u05e9\u05dc\u05d5\u05dd" in text
    assert " &lt;i&gt;and&lt;/i&gt; more</blockquote>" in text
    assert '<blockquote dir="auto">' in text
    assert "only the end of your prompt was used" in text
    assert "refresh" not in text
    assert "<script>alert" not in text


def test_the_organizers_prompts_are_beginnings_to_press(released: Run, client: Client) -> None:
    """A pressed beginning replaces what was typed, also without a script."""
    Run.objects.update(prompts="Many hands\n<b>make")
    text = page(client.get(ADDRESS))
    assert 'name="prompt" value="&lt;b&gt;make"' in text
    client.post(ADDRESS, {"prompt": ["typed", "Many hands"]})
    assert Trial.objects.get().prompt == "Many hands"


def test_how_many_come_first_is_told(released: Run) -> None:
    for place in range(3):
        Client(REMOTE_ADDR=f"192.0.2.{place}").post(ADDRESS, {"prompt": str(place)})
    last = Trial.objects.get(prompt="2")
    assert "2 texts are ahead of yours." in page(Client().get(f"{ADDRESS}{last.pk}/"))


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("x" * (trials.LONGEST_PROMPT + 1), f"At most {trials.LONGEST_PROMPT} characters; this has 501."),
        ("x" * 900_000, "At most 500 characters; this has 900000."),
        ("a\0b", "Remove the NUL character"),
    ],
)
def test_what_is_too_long_or_no_text_is_refused_in_words(
    released: Run, client: Client, prompt: str, words: str
) -> None:
    answer = client.post(ADDRESS, {"prompt": prompt})
    assert (answer.status_code, Trial.objects.count()) == (400, 0)
    assert words in page(answer)


def test_more_than_the_site_reads_is_refused_in_words(released: Run, client: Client) -> None:
    answer = client.post(ADDRESS, {"prompt": "x" * 2_000_000})
    assert answer.status_code == 413
    assert "The request is too large" in page(answer)


def test_a_full_queue_says_so_and_keeps_the_prompt(
    released: Run, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "MOST_WAITING", 1)
    Client(REMOTE_ADDR="192.0.2.1").post(ADDRESS, {"prompt": "first"})
    answer = client.post(ADDRESS, {"prompt": "Many hands"})
    assert answer.status_code == 503
    assert "The queue is full: no more than 1 texts can wait" in page(answer)
    assert "> Many hands</textarea>" in page(answer)


def test_people_are_counted_by_name_and_others_by_address(released: Run, client: Client, stranger: Any) -> None:
    assert client.post(ADDRESS, {"prompt": "one"}).status_code == 302
    assert "One text at a time" in page(client.post(ADDRESS, {"prompt": "two"}))
    known = as_(stranger)
    assert known.post(ADDRESS, {"prompt": "three"}).status_code == 302
    assert known.post(ADDRESS, {"prompt": "four"}).status_code == 503


def test_an_address_that_asks_too_often_waits(released: Run, client: Client, settings: Any) -> None:
    settings.RATES = {**settings.RATES, "texts to write for one address": (2, 600)}
    answers = []
    for _ in range(3):
        answers.append(client.post(ADDRESS, {"prompt": ""}))
        Trial.objects.update(slot=None)
    assert [answer.status_code for answer in answers] == [302, 302, 429]
    assert "E223" in page(answers[-1])


def test_where_it_is_off_there_is_neither_form_nor_page(released: Run, client: Client) -> None:
    organizer = as_(released.organizer)
    switch = re.compile(r'role="switch" aria-checked="(\w+)"[^>]*value="(\w+)">(\w+)<')
    assert switch.findall(page(organizer.get("/runs/proverbs/manage/"))) == [("true", "forbid_trials", "On")]
    assert organizer.post("/runs/proverbs/manage/", {"action": "forbid_trials"}).status_code == 302
    text = page(organizer.get("/runs/proverbs/manage/"))
    assert "Visitors cannot try the model" in text
    assert switch.findall(text) == [("false", "allow_trials", "Off")]
    assert ADDRESS not in page(client.get("/runs/proverbs/"))
    assert client.get(ADDRESS).status_code == 404
    assert client.post(ADDRESS, {"prompt": ""}).status_code == 404
    organizer.post("/runs/proverbs/manage/", {"action": "allow_trials"})
    assert client.get(ADDRESS).status_code == 200


def test_an_operator_switches_it_off_for_all(released: Run, client: Client, settings: Any) -> None:
    settings.TRY_PARAMETERS = 0
    assert client.get(ADDRESS).status_code == 404
    assert "Try it" not in page(as_(released.organizer).get("/runs/proverbs/manage/"))


def test_a_text_of_another_run_or_of_nobody_is_not_there(released: Run, client: Client) -> None:
    client.post(ADDRESS, {"prompt": "one"})
    own = f"{ADDRESS}{Trial.objects.get().pk}/"
    other = opened(released.organizer, slug="elsewhere")
    assert client.get(own).status_code == 200
    assert client.get(own.replace(released.slug, other.slug)).status_code == 404, "who may see that one may not see it"
    assert client.get(f"{ADDRESS}00000000-0000-4000-8000-000000000000/").status_code == 404


def test_what_went_wrong_is_told(released: Run, client: Client) -> None:
    client.post(ADDRESS, {"prompt": "one"})
    Trial.objects.update(
        slot=None, fault="E327: One of the site's processes failed (it took longer than 90 s). Try again."
    )
    assert "it took longer than 90 s" in page(client.get(f"{ADDRESS}{Trial.objects.get().pk}/"))
