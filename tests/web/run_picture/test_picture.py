"""The picture of a run shown on its page: losses, counts, the bars of the current step, and averaged bytes."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from accounts.models import Person
from coordination.models import Presence
from coordination.presence import OnlinePeer
from peer_agent.protocol.recipe import encode_recipe
from runs.ledger.standings import LeaderboardLine, Shares
from runs.ledger.totals import AveragedLine
from runs.models import Release, Run
from runs.selectors import Measured, Point, RunPicture
from tests.runs.factories import RECIPE, committed, owned
from tests.web.browsing import as_, page
from tests.web.run_picture.test_status_sentence import AUXILIARY, NOOR, RELAY, TEO, picture
from web.run_picture.picture import CHIPS, OWN_BARS, STANDING_ON, Seen, picture_of
from web.run_picture.status_sentence import passes_note


def seen(*averaged: AveragedLine) -> Seen:
    board = [LeaderboardLine(1, "Teo", 12, 96, 3, 1)]
    shown = picture("open", leaderboard=board, averaged=list(averaged))
    shown.run.recipe = encode_recipe(RECIPE).decode()
    return Seen(shown, (TEO, NOOR, AUXILIARY, RELAY), "reduce", 0, datetime(2026, 11, 21, tzinfo=UTC))


def test_auxiliaries_are_counted_apart_and_make_no_step() -> None:
    shown = picture_of(seen())
    assert shown["others"] == "1 relay · 1 auxiliary"
    assert (shown["training"], shown["relays"], len(shown["chips"])) == (2, 1, 2)
    assert shown["sentence"].startswith("2 people on 2 machines are")


def test_column_of_averaged_bytes_appears_once_there_are_any() -> None:
    shown = picture_of(seen())
    assert (shown["averages"], [line["averaged"] for line in shown["leaderboard"]]) == (False, [""])
    lines = (AveragedLine("Ida", 2_500_000, is_ranked=False), AveragedLine("Teo", 900_000, is_ranked=True))
    shown = picture_of(seen(*lines))
    assert shown["averages"] is True
    found = [(line["rank"], line["name"], line["samples"], line["averaged"]) for line in shown["leaderboard"]]
    assert found == [(1, "Teo", 12, "900.0\N{NO-BREAK SPACE}kB"), (0, "Ida", 0, "2.5\N{NO-BREAK SPACE}MB")], (
        "who only averages has no rank"
    )


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def measured(*losses: float) -> list[Measured]:
    return [Measured(place, 50 * place, loss, NOON) for place, loss in enumerate(losses, 1)]


def with_recipe(shown: RunPicture) -> RunPicture:
    shown.run.recipe = encode_recipe(RECIPE).decode()
    return shown


def test_held_out_loss_leads_with_the_best_and_its_step() -> None:
    falling = [Point(step, 8 - step / 100) for step in range(1, 201)]
    shown = picture_of(Seen(with_recipe(picture("open", points=falling)), (), "", 0, NOON))
    assert (shown["heldout_loss"], shown["heldout_note"], shown["warning"]) == (None, "", "")
    assert shown["loss"] == pytest.approx(6.04), "the median of the last nine"
    told = {
        (4.0,): "at step 50",
        (4.0, 3.3): "the lowest, at step 100",
        (4.0, 3.3, 4.29): "at step 150 · best 3.30 at step 100",
    }
    for losses, words in told.items():
        shown = picture_of(Seen(with_recipe(picture("open", heldout=measured(*losses))), (), "", 0, NOON))
        assert (shown["heldout_loss"], shown["heldout_note"]) == (losses[-1], words)
    rising = picture("open", points=falling, heldout=measured(4.0, 3.3, 3.6, 4.29))
    assert picture_of(Seen(with_recipe(rising), (), "", 0, NOON))["warning"] == (
        "The model is overfitting: held-out loss rose from 3.30 at step 100 to 4.29 at step 200 while training loss "
        "fell. The snapshot of step 100 is the best so far."
    )


def test_perplexity_is_told_of_models_that_are_judged_by_it() -> None:
    judged = [
        Measured(place, 50 * place, loss, NOON, {"perplexity": 9.0}) for place, loss in enumerate((4.0, 3.3, 6), 1)
    ]
    told = {
        "none is measured": ([], ("", "")),
        "as of a masked language model": (measured(4.0, 3.3), ("", "")),
        "the newest is not the best": (judged, ("403", "at step 150 · best 27.1 at step 100")),
        "the newest is": (judged[:2], ("27.1", "the lowest, at step 100")),
    }
    for why, (points, words) in told.items():
        shown = picture_of(Seen(with_recipe(picture("open", heldout=points)), (), "", 0, NOON))
        assert (shown["perplexity"], shown["perplexity_note"]) == words, why


@pytest.mark.parametrize(
    ("passes", "words"),
    [(None, ""), (0.0, ""), (0.03, "less than 0.1 passes through the dataset (epochs)"),
     (1.0, "1.0 pass through the dataset (epoch)"),
     (4.16, "4.2 passes through the dataset (epochs)"), (1042.3, "1,042 passes through the dataset (epochs)")],
)  # fmt: skip
def test_passes_are_told_as_far_as_they_are_known(passes: float | None, words: str) -> None:
    assert passes_note(passes) == words


def test_the_people_of_a_step_sum_to_the_samples_shown() -> None:
    """Machines compute a few more samples than a step needs. A person's machines are counted together."""
    shown = with_recipe(picture("open", target_batch=10))
    found = picture_of(Seen(shown, (TEO, NOOR, NOOR._replace(peer="c" * 32)), "accumulate", 0, NOON))
    assert (found["step_title"], found["target"]) == (f"Step {shown.step + 1}", 10)
    assert [chip["name"] for chip in found["chips"]] == ["Noor", "Teo"]
    assert sum(chip["done"] for chip in found["chips"]) == found["done"] > 10
    assert "ghost" not in found["strip"], "the step is full"


def test_a_point_has_what_every_chart_shows() -> None:
    points = [Point(1, 8.0), Point(2, 7.0, NOON, 33.33333, 12, 0.0001234567, 2**40)]
    shown = picture_of(Seen(with_recipe(picture("open", points=points)), (), "", 0, NOON))
    assert shown["points"] == [
        [1, 8.0, 0, None, None, None, None],
        [2, 7.0, NOON.timestamp(), 33.33, 12, 0.0001235, 2**40],
    ]
    assert [each["key"] for each in shown["charts"]] == ["speed", "machines", "rate", "bytes"]


def test_short_steps_are_shown_together() -> None:
    shares = Shares(50, 200, {"Teo": 150, "Ida": 30}, [{"Teo": 150, "Ida": 50}])
    shown = with_recipe(picture("open", pace_s=0.4, shares=shares))
    found = picture_of(Seen(shown, (TEO,), "reduce", 0, NOON))
    assert (found["step_title"], found["phase"], found["done"], found["target"]) == ("Last 50 steps", "", 200, 0)
    assert [(chip["name"], chip["done"]) for chip in found["chips"]] == [("Teo", 150), ("Ida", 30)]
    assert found["training"] == 1
    resting = picture_of(Seen(shown, (), "", 0, NOON))
    assert resting["chips"] == [], "nobody trains"


@pytest.mark.parametrize("shares", [None, Shares(50, 200, {"Teo": 150, "Ida": 50}, [{"Teo": 150, "Ida": 50}])])
def test_no_machine_trains_while_the_run_is_paused(shares: Shares | None) -> None:
    shown = with_recipe(
        picture("paused", pace_s=0.4, shares=shares, leaderboard=[LeaderboardLine(1, "Teo", 9, 9, 3, 1)])
    )
    found = picture_of(Seen(shown, (TEO, NOOR, RELAY), "accumulate", 0, NOON))
    assert (found["chips"], found["training"], found["samples_per_s"], found["tokens_per_s"]) == ([], 0, 0, 0)
    assert (found["stage"], found["leaderboard"][0]["now"], found["relays"]) == ("paused", False, 1)
    assert "when the organizer resumes" in found["nobody"]


def test_people_are_counted_once_towards_the_goal() -> None:
    def goal(state: str, goal: int | None, *peers: OnlinePeer) -> str | None:
        shown = with_recipe(picture(state))
        shown.run.people_goal = goal
        found = picture_of(Seen(shown, peers, "", 0, NOON))["goal"]
        return str(found["words"]) if found else None

    assert goal("open", 20, TEO, NOOR, NOOR._replace(peer="c" * 32), RELAY) == "2 of the 20 people hoped for"
    assert goal("open", 1, TEO) is None, "the sentence above says how many there are"
    assert goal("open", None, TEO) is None
    assert goal("paused", 20, TEO) is None
    assert goal("finished", 20) is None


def test_a_run_that_was_ended_early_has_a_full_bar() -> None:
    found = picture_of(Seen(with_recipe(picture("finished", step=32)), (), "", 0, NOON))
    assert (found["step"], found["target_steps"], found["progress"]) == (32, 32, "ended at step 32")


def test_a_state_has_a_label_for_people() -> None:
    def label(state: str, *peers: OnlinePeer, **more: Any) -> tuple[str, str]:
        found = picture_of(Seen(with_recipe(picture(state, **more)), peers, "", 0, NOON))
        return found["word"], found["label"]

    assert label("open", TEO) == ("running", "Running")
    assert label("open", RELAY) == ("waiting", "Waiting for volunteers")
    assert label("open", TEO, waiting_for="no relay is connected") == ("waiting", "Waiting")
    assert label("draft", dataset="failed") == ("failed", "Failed")
    assert label("draft") == ("draft", "Draft")
    assert label("finishing", release=Release(state=Release.State.FAILED)) == ("failed", "Failed")
    assert label("finished", release=Release(state=Release.State.READY)) == ("finished", "Finished")


@pytest.mark.parametrize("release", [None, Release(state="preparing"), Release(state="ready", step=400)])
def test_what_the_page_compares_is_text(release: Release | None) -> None:
    """The script and the server would write other types differently: `None` and an empty text, `True` and `true`."""
    shown = picture_of(Seen(with_recipe(picture("finished", release=release)), (), "", 0, NOON))
    assert [type(shown[name]) for name in STANDING_ON] == [str] * len(STANDING_ON)
    assert shown["released_step"] == ("400" if release and release.step else "")


def training(run: Run, *names: str) -> None:
    shown = {"state": "ready", "samples_per_s": 1.0}
    members = [
        {"peer": f"{at:032}", "name": name, "role": "trainer", "done": at, **shown} for at, name in enumerate(names, 1)
    ]
    rest = [
        {"peer": f"{at:032}", "name": "Teo", "role": role, "done": 0, **shown}
        for at, role in ((8000, "auxiliary"), (9000, "relay"))
    ]
    Presence.objects.update_or_create(run=run, defaults={"phase": "accumulate", "target": 4, "members": members + rest})


def crowd(count: int) -> list[str]:
    return [f"A{at:03}" for at in reversed(range(count))]


def chips(text: str) -> list[tuple[str, int]]:
    """Return the people and samples of the step in progress."""
    found = re.findall(r'<li class="chip tint-\d" [^>]*>(\S+) <span class="figure quiet">([\d,]+)</span>', text)
    return [(name, int(done)) for name, done in found]


def own(text: str) -> list[int]:
    """Return the samples on the bars that only the reader sees."""
    part = re.search(r'<div id="part-mine".*?</div>', text)
    assert part is not None
    return [int(done) for done in re.findall(r'<span class="figure">(\d+) of [\d,]+ samples?</span>', part[0])]


def test_everybody_sees_who_gives_most(run: Run, client: Client) -> None:
    committed(run, (owned(run.organizer).machine, 4))
    training(run, *crowd(CHIPS + 10))
    text = page(client.get(f"/runs/{run.slug}/"))
    assert chips(text) == [(f"A{at:03}", CHIPS + 10 - at) for at in range(CHIPS)]
    done = sum(range(1, CHIPS + 11))
    assert f">{done}</eased-number> / 4</span> samples" in text, "others work too"
    assert "and 10 more" in text
    assert f'<a href="/runs/{run.slug}/swarm/">{CHIPS + 10} machines</a>' in text
    assert own(text) == []
    assert page(client.get(f"/runs/{run.slug}/swarm/")).count("<tr") == 1 + CHIPS + 10 + 2, "all are there"


def test_readers_see_their_own_machines(run: Run, volunteer: Person) -> None:
    training(run, "Teo", *crowd(CHIPS + 10), "Teo")
    text = page(as_(volunteer).get(f"/runs/{run.slug}/"))
    assert own(text) == [1, CHIPS + 12]
    assert "Your 2 machines: no samples yet" in text
    asked = page(as_(volunteer).get(f"/runs/{run.slug}/own/"))
    assert own(asked) == own(text)
    assert '<div id="part-mine" class="mine-card" data-follow>' in asked


def test_nobody_has_more_than_a_few_of_their_own(run: Run, volunteer: Person) -> None:
    training(run, *crowd(CHIPS), *["Teo"] * (OWN_BARS + 3))
    assert len(own(page(as_(volunteer).get(f"/runs/{run.slug}/own/")))) == OWN_BARS


def test_nobody_gets_those_of_others(run: Run, volunteer: Person, organizer: Person) -> None:
    training(run, *crowd(CHIPS), "Teo")
    for reader in (Client(), as_(organizer)):
        text = page(reader.get(f"/runs/{run.slug}/own/"))
        assert own(text) == []
        assert "data-follow" not in text


def test_a_run_has_one_of_five_pages() -> None:
    def stage(state: str, *peers: OnlinePeer, **more: Any) -> str:
        return str(picture_of(Seen(with_recipe(picture(state, **more)), peers, "", 0, NOON))["stage"])

    assert stage("draft", step=0) == stage("open", step=0) == stage("open", TEO, step=0) == "waiting"
    assert stage("open", TEO) == stage("open") == stage("finishing") == "live"
    assert stage("paused") == "paused"
    assert stage("finished", release=Release(state="ready")) == "finished"
    assert stage("finishing", release=Release(state="failed")) == stage("draft", dataset="failed") == "failed"
