"""The sentences on a run's cards."""

from datetime import timedelta

import pytest
from django.utils import timezone

from runs.models import Run
from tests.web.run_picture.test_status_sentence import picture
from web.run_picture.card_sentences import (
    given,
    last_step,
    nobody,
    others,
    percent,
    progress,
    resting,
    without_curve,
)


def test_how_far_it_is_and_how_long_the_rest_takes() -> None:
    moving = picture("open", step=1200, target_steps=1288)
    assert progress(moving, "about 88 min to go") == "step 1,200 of 1,288 · about 88 min to go"
    assert progress(moving, "") == "step 1,200 of 1,288"


@pytest.mark.parametrize("state", ["finishing", "finished"])
def test_a_run_that_was_ended_early_is_complete(state: str) -> None:
    ended = picture(state, step=1320, target_steps=2000)
    assert progress(ended, "") == "ended at step 1,320"
    assert last_step(ended.run, 1320, 2000) == 1320
    assert progress(picture(state, step=2000, target_steps=2000), "") == "step 2,000 of 2,000"
    assert last_step(picture("paused").run, 1320, 2000) == 2000


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("open", "No machines are training right now. A step needs 48 samples from all machines together."),
        ("paused", "Training is paused."),
        ("finished", "Training finished after 12,000 samples."),
    ],
)
def test_a_step_that_nobody_makes(state: str, words: str) -> None:
    assert resting(picture(state, samples=12_000)) == words


@pytest.mark.parametrize(
    ("relays", "auxiliaries", "void_rounds", "words"),
    [
        (0, 0, 0, ""),
        (1, 0, 1, "1 relay · 1 retried step"),
        (2, 1, 1000, "2 relays · 1 auxiliary · 1,000 retried steps"),
        (0, 2, 0, "2 auxiliaries"),
    ],
)
def test_what_stands_beside_the_machines(relays: int, auxiliaries: int, void_rounds: int, words: str) -> None:
    assert others(relays, auxiliaries, void_rounds) == words


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((1, 1, 1), "1 sample from 1 person on 1 machine"),
        ((3, 4, 1204), "1,204 samples from 3 people on 4 machines"),
    ],
)
def test_what_everybody_gave(facts: tuple[int, int, int], words: str) -> None:
    assert given(*facts) == words


def test_before_the_first_step_there_is_something_to_beat() -> None:
    assert without_curve(None) == "The curve will start with the first step."
    assert "Baseline: 5.21 nats per token" in without_curve(5.2134)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0, ""),
        (1e-6, "under 0.1%"),
        (0.0005, "0.1%"),
        (0.0994, "9.9%"),
        (0.0995, "10%"),
        (1 / 3, "33%"),
        (1, "100%"),
    ],
)
def test_a_part_is_told_to_what_is_known_of_it(part: float, words: str) -> None:
    assert percent(part) == words


def test_an_empty_leaderboard_says_when_it_starts() -> None:
    now = timezone.now()
    starts = "The leaderboard starts with the first step."
    assert nobody(Run(state="open", starts_at=now + timedelta(hours=1)), now).endswith(starts)
    assert nobody(Run(state="preparing"), now).endswith(starts)
    assert nobody(Run(state="paused"), now).endswith("when the organizer resumes the run.")
    assert nobody(Run(state="open"), now).endswith("within a minute of joining.")
