"""The status sentence in every state, and the wording of durations, trends and ranks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from coordination.presence import OnlinePeer
from runs.ledger.standings import Place
from runs.models import Dataset, Release, Run
from runs.selectors import Point, RunPicture
from web.run_picture.counts import duration, ordinal
from web.run_picture.picture import bars_of, step_sums, tint_of
from web.run_picture.status_sentence import (
    run_sentence,
    standing,
    start_of,
    state_word,
    to_go,
    trend,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
TEO, NOOR = (OnlinePeer("a" * 32, name, "trainer", "ready", done, 10.0) for name, done in (("Teo", 3), ("Noor", 9)))
RELAY = OnlinePeer("b" * 32, "operator", "relay", "ready", 0, 0.0)
AUXILIARY = OnlinePeer("c" * 32, "Ida", "auxiliary", "ready", 0, 0.0)


def picture(state: str, *, waiting_for: str = "", dataset: str = "ready", **changes: Any) -> RunPicture:
    run = Run(state=state, waiting_for=waiting_for, title="Proverbs")
    run._state.fields_cache["organizer"] = "Amina"
    text = Dataset(state=dataset, fault_code="E302", fault_text="The text is not UTF-8.")
    facts: dict[str, Any] = {
        "run": run, "dataset": text, "step": 12, "index": 12, "target_steps": 100, "target_batch": 48,
        "pace_s": None, "points": [], "leaderboard": [], "people": 2, "machines": 3, "samples": 0, "tokens": 0,
        "activity": [], "release": None,
    }  # fmt: skip
    return RunPicture(**{**facts, **changes})


def ending(shown: RunPicture) -> RunPicture:
    shown.run.wanted = Run.Wanted.FINISHED
    return shown


@pytest.mark.parametrize(
    ("shown", "peers", "words"),
    [
        (picture("draft"), [], "volunteers can join once"),
        (picture("draft", dataset="preparing"), [], "the dataset is being prepared"),
        (picture("draft", dataset="failed"), [], "The dataset could not be prepared."),
        (picture("draft", waiting_for="E307: Too short."), [], "could not be published. E307"),
        (picture("preparing"), [], "Preparing the initial model."),
        (picture("preparing", dataset="preparing"), [], "Preparing the dataset."),
        (
            picture("open"),
            [],
            "The run is at step 12 and will continue as soon as a machine joins.",
        ),
        (picture("open", step=0), [RELAY], "The first machine that joins starts the run."),
        (picture("open", step=0, minimum_trainers=2), [RELAY], "The run starts once 2 machines have joined."),
        (picture("open"), [TEO, RELAY], "1 person on 1 machine is working on step 13."),
        (picture("open"), [TEO, NOOR, NOOR], "2 people on 3 machines are working on step 13."),
        (picture("open", pace_s=1.2), [TEO], "A step takes about 1.2 s."),
        # At 10 samples/s, the 48 samples of a step take 4.8 s of its 6 s, so averaging takes 1.2 s. The missing 45 take
        # 4.5 s.
        (picture("open", pace_s=6.0), [TEO], "Next step in about 6 s."),
        (picture("open", pace_s=600.0, target_batch=6000), [TEO], "Next step in about 10 min."),
        (picture("open", pace_s=4.0, target_batch=3), [TEO], "Next step in about 4 s."),
        (picture("open", pace_s=4.0), [TEO._replace(samples_per_s=0.0)], "Next step in about 4 s."),
        (picture("open", waiting_for="no relay is here"), [TEO], "No relay is here."),
        (picture("open", step=100), [TEO], "All 100 steps are done."),
        (ending(picture("open")), [TEO], "The run is ending at step 12. The model is being uploaded."),
        (ending(picture("open")), [RELAY], "It is waiting for a machine to upload the model."),
        (ending(picture("finishing")), [], "12 steps are done. The model is being checked and packaged."),
        (ending(picture("finishing", step=1)), [], "1 step is done. The model is being checked and packaged."),
        (picture("finished", step=1), [], "Finished: 1 step by 2 people."),
        (picture("paused"), [TEO], "Paused at step 12. Nothing is lost"),
        (
            picture("finishing", release=Release(state="failed")),
            [],
            "12 steps are done, but the model could not be prepared for download.",
        ),
        (picture("finishing"), [], "being checked and packaged"),
        (picture("finishing", waiting_for="E312: No memory."), [], "E312: No memory."),
        (picture("finished"), [], "Finished: 12 steps by 2 people."),
    ],
)
def test_one_sentence_says_what_moves_or_why_nothing_does(
    shown: RunPicture, peers: list[OnlinePeer], words: str
) -> None:
    assert words in run_sentence(shown, peers)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.44, "0.4 s"),
        (4.0, "4 s"),
        (42, "42 s"),
        (100, "2 min"),
        (3600, "60 min"),
        (7800, "2 h 10 min"),
        (86_300, "23 h 58 min"),
        (86_400, "1 day"),
        (75 * 3600, "3 days"),
        (400_000, "5 days"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_rest_is_estimated_only_while_it_moves() -> None:
    assert to_go(picture("open", pace_s=60.0)) == "about 88 min to go"
    assert to_go(picture("paused", pace_s=60.0)) == ""
    assert to_go(picture("open")) == ""


def test_the_trend_of_a_young_run_looks_a_hundred_steps_back() -> None:
    points = [Point(step, 8 - step / 100) for step in range(1, 301)]
    assert trend(points, NOON) == "down 1.00 in 100 steps"
    assert trend([Point(1, 4.0), Point(2, 4.5)], NOON) == "up 0.50 in 1 step"
    assert trend(points[:1], NOON) == ""


def test_the_trend_of_an_older_run_is_that_of_an_hour() -> None:
    points = [Point(step, 8 - step / 100, NOON - timedelta(minutes=5 * (100 - step))) for step in range(1, 101)]
    assert trend(points, NOON) == "down 0.12 in the last hour"
    assert trend(points, NOON + timedelta(days=1)) == "down 0.12 in its last hour"
    slow = [Point(step, 8.0 - step, NOON - timedelta(minutes=20 * (10 - step))) for step in range(1, 11)]
    assert trend(slow, NOON) == "down 5.00 in 5 steps", "three steps say little of an hour"


def test_a_place_is_told_with_what_is_missing_to_the_next() -> None:
    assert standing(Place(14, 13, 212)) == "you: 14th, 212 samples short of 13th"
    assert standing(Place(4321, 4318, 1)) == "you: 4,321st, 1 sample short of 4,318th"
    assert standing(Place(1, 1, None)) == "you: 1st"
    assert [ordinal(number) for number in (2, 3, 11, 12, 13, 22, 111)] == [
        "2nd", "3rd", "11th", "12th", "13th", "22nd", "111th",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hours", "peers", "words"),
    [
        (342, [TEO, NOOR, NOOR], "Starts Saturday 5 December, 18:00 UTC, in 14 days. 2 people are ready."),
        (2.5, [TEO, RELAY], "Starts Saturday 21 November, 14:30 UTC, in 2 h 30 min. 1 person is ready."),
        (60 * 24, [], "Starts Wednesday 20 January 2027, 12:00 UTC, in 60 days. Nobody is ready yet."),
        (0, [TEO], "1 person on 1 machine is working on step 1."),
    ],
)
def test_a_run_says_when_it_starts_until_then(hours: float, peers: list[OnlinePeer], words: str) -> None:
    shown = picture("open", step=0)
    shown.run.starts_at = NOON + timedelta(hours=hours)
    assert run_sentence(shown, peers, NOON) == words


def test_only_an_open_run_waits_for_its_start() -> None:
    run = Run(state="open", starts_at=NOON + timedelta(days=3))
    start = start_of(run, [TEO], NOON)
    assert start == (run.starts_at, "Tuesday 24 November, 12:00 UTC", "in 3 days", "1 person is ready.")
    assert start_of(Run(state="paused", starts_at=run.starts_at), [TEO], NOON) is None


def test_a_run_that_waits_is_not_called_running() -> None:
    assert state_word(picture("open"), [TEO]) == "running"
    assert state_word(picture("open"), []) == "waiting"
    assert state_word(picture("open", waiting_for="a relay"), [TEO]) == "waiting"
    assert state_word(picture("paused"), [TEO]) == "paused"


def test_a_bar_for_each_trainer_by_name() -> None:
    bars = bars_of([TEO, NOOR], target=48, most=5)
    assert [(bar["name"], bar["done"], bar["share"]) for bar in bars] == [("Noor", 9, 18.8), ("Teo", 3, 6.2)]
    other = TEO._replace(peer="c" * 32)
    assert bars_of([other, TEO], target=48, most=5) == bars_of([TEO, other], target=48, most=5), "in any order"
    assert bars_of([NOOR], target=4, most=5)[0]["share"] == 100.0, "machines compute a few samples more than are needed"


def test_what_trainers_have_done_is_summed_up() -> None:
    sums = step_sums([TEO, NOOR, RELAY], phase="reduce")
    assert (sums.done, sums.relays, sums.samples_per_s, sums.phase) == (12, 1, 20.0, "averaging")


def test_a_person_keeps_their_tint() -> None:
    assert tint_of("Teo") == tint_of("Teo")
    assert {tint_of(str(number)) for number in range(100)} == set(range(8))
