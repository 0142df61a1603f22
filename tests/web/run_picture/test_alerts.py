"""Alerts for those who manage a run: the condition, exceptions and starting time of each alert."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from coordination.presence import Crowd, OnlinePeer
from peer_agent.protocol.errors import Fault
from runs.models import Publication, Release, Verification
from runs.selectors import Point
from tests.web.run_picture.test_picture import with_recipe
from tests.web.run_picture.test_status_sentence import AUXILIARY, RELAY, TEO, ending, picture
from web.run_picture.alerts import BEFORE, FEW_S, run_alerts, run_troubles
from web.run_picture.picture import FIRST_S, STALLED_S, STALLED_TIMES, Seen, picture_of

NOON = datetime(2026, 12, 3, 12, 4, tzinfo=UTC)
LONG_AGO = NOON - timedelta(days=1)
NO_ROOM, NO_HUB = Fault.of("E328"), Fault.of("E346", endpoint="https://hub", reason="refused")
FAILED = Release(state="failed", fault=str(Fault.of("E312", reason="no room")))
REPLAY = Verification(fault=str(Fault.of("E341", step=9)))
REPLAY_FAULTS = [Fault.of("E341", step=9), Fault.of("E342", step=9, reason="it differs"), NO_ROOM]


def seen(now: datetime, state: str = "open", **changes: Any) -> Seen:
    facts: dict[str, Any] = {"points": [Point(1, 5.0, NOON)], "pace_s": 200.0, **changes}
    least, opened_at = facts.pop("least", None), facts.pop("opened_at", LONG_AGO)
    shown = picture(state, **facts)
    shown.run.least_machines, shown.run.opened_at = least, opened_at
    return Seen(shown, (TEO, RELAY), "accumulate", 0, now)


class Watch(NamedTuple):
    crowd: Sequence[Crowd] = ()
    resumed_at: Callable[[], datetime | None] = lambda: None

    def over(self, of: Seen) -> Seen:
        return of._replace(**self._asdict())


def codes(of: Seen, watch: Watch) -> list[str]:
    return [fault.code for fault in run_alerts(watch.over(of))]


HERE = Watch((Crowd(LONG_AGO, 1),))


class TestAStepThatTakesTooLong:
    @pytest.mark.parametrize(("pace_s", "bound_s"), [(200.0, STALLED_TIMES * 200.0), (1.0, STALLED_S), (None, FIRST_S)])
    def test_is_told_after_several_usual_ones_and_never_at_once(self, pace_s: float | None, bound_s: float) -> None:
        at_most = NOON + timedelta(seconds=bound_s)
        assert codes(seen(at_most, pace_s=pace_s), HERE) == []
        (told,) = run_alerts(HERE.over(seen(at_most + timedelta(seconds=1), pace_s=pace_s)))
        assert told.code == "E421"
        assert "since 12:04 on 3 Dec (UTC), with 1 machine training." in told.text
        assert ("A step usually takes about" in told.text) is (pace_s is not None)
        assert told.remedy

    @pytest.mark.parametrize(
        ("of", "watch"),
        [
            ({"points": []}, Watch((Crowd(NOON, 1),))),
            (
                {"points": [Point(1, 5.0, LONG_AGO)]},
                Watch((Crowd(LONG_AGO, 2), Crowd(NOON - timedelta(hours=1), 0), Crowd(NOON, 1))),
            ),
            ({"points": [Point(1, 5.0, LONG_AGO)]}, Watch((Crowd(LONG_AGO, 1),), resumed_at=lambda: NOON)),
            ({"points": [], "opened_at": NOON}, HERE),
        ],
    )
    def test_counts_from_when_somebody_trains_and_the_run_goes(self, of: dict[str, Any], watch: Watch) -> None:
        last = NOON + timedelta(seconds=1000)
        assert codes(seen(last, **of), watch) == []
        assert codes(seen(last + timedelta(seconds=1), **of), watch) == ["E421"]

    def test_changing_machines_are_no_pause_while_one_is_there(self) -> None:
        watch = Watch((Crowd(LONG_AGO, 1), Crowd(NOON + timedelta(minutes=10), 3), Crowd(NOON + timedelta(hours=1), 2)))
        (told,) = run_alerts(watch.over(seen(NOON + timedelta(hours=1))))
        assert "with 2 machines training" in told.text

    @pytest.mark.parametrize(
        ("of", "watch"),
        [
            (seen(NOON + timedelta(days=1)), Watch()),
            (seen(NOON + timedelta(days=1)), Watch((Crowd(LONG_AGO, 3), Crowd(NOON, 0)))),
            (seen(NOON + timedelta(days=1), "paused"), HERE),
            (seen(NOON + timedelta(days=1), "finished"), HERE),
            (seen(NOON + timedelta(days=1), step=100), HERE),
        ],
    )
    def test_needs_machines_and_a_run_that_goes(self, of: Seen, watch: Watch) -> None:
        assert codes(of, watch) == []

    def test_is_not_told_of_a_run_that_is_ending(self) -> None:
        of = seen(NOON + timedelta(days=1))
        assert codes(of._replace(run=ending(of.run)), HERE) == []


def test_the_status_says_that_a_run_is_stuck() -> None:
    for late, at in ((timedelta(hours=1), "12:04"), (timedelta(days=1), "3 December, 12:04")):
        of = HERE.over(seen(NOON + late))
        shown = picture_of(of._replace(run=with_recipe(of.run)))
        missing = "only 3 of 48 samples have arrived. Another machine would help."
        assert (shown["sentence"], shown["to_go"]) == (f"Stuck at step 13 since {at} UTC: {missing}", "")
        assert (shown["word"], shown["label"]) == ("stuck", "Stuck")


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"phase": "reduce"}, "UTC: the samples have not been averaged yet."),
        ({"peers": (TEO._replace(done=48),)}, "UTC: the samples have not been averaged yet."),
        ({"phase": ""}, "since 12:04 UTC."),
        ({"peers": (RELAY,)}, "since 12:04 UTC."),
    ],
)
def test_a_stuck_status_names_only_what_is_known_to_be_missing(changes: dict[str, Any], ends: str) -> None:
    of = HERE.over(seen(NOON + timedelta(hours=1)))
    sentence = picture_of(of._replace(run=with_recipe(of.run), **changes))["sentence"]
    assert sentence.startswith("Stuck at step 13 since")
    assert sentence.endswith(ends)


def test_a_stalled_step_follows_from_a_missing_relay() -> None:
    of = seen(NOON + timedelta(days=1))
    assert [fault.code for fault in run_troubles(HERE.over(of), None, None)] == ["E421"]
    without = of._replace(peers=(TEO,))
    assert [fault.code for fault in run_troubles(HERE.over(without), None, None)] == ["E409"]


class TestFewMachines:
    def test_fewer_than_wanted_since_when(self) -> None:
        begun = NOON + timedelta(minutes=3)
        watch = Watch((Crowd(LONG_AGO, 5), Crowd(begun, 2), Crowd(begun + timedelta(minutes=1), 1)))
        late = begun + timedelta(seconds=FEW_S + 61)
        (told,) = run_alerts(watch.over(seen(late, least=5)))
        assert told.code == "E422"
        assert "Only 1 machine has been training since 12:08 on 3 Dec (UTC), fewer than the 5 wanted." in told.text

    @pytest.mark.parametrize(("least", "told"), [(None, []), (1, []), (2, []), (3, ["E422"])])
    def test_only_below_the_number_and_only_where_there_is_one(self, least: int | None, told: list[str]) -> None:
        assert codes(seen(NOON + timedelta(minutes=5), least=least), Watch((Crowd(NOON, 2),))) == told

    def test_not_while_a_machine_connects_again(self) -> None:
        watch = Watch((Crowd(LONG_AGO, 2), Crowd(NOON, 1)))
        assert codes(seen(NOON + timedelta(seconds=FEW_S), least=2), watch) == []
        assert codes(seen(NOON + timedelta(seconds=FEW_S + 1), least=2), watch) == ["E422"]

    def test_no_machine_is_told_since_the_last_one_left(self) -> None:
        watch = Watch((Crowd(LONG_AGO, 2), Crowd(NOON, 0), Crowd(NOON + timedelta(minutes=5), 1)))
        gone = Crowd(NOON + timedelta(minutes=9), 0)
        (told,) = run_alerts(Watch((*watch.crowd, gone)).over(seen(NOON + timedelta(hours=9), least=2)))
        assert "No machine has been training since 12:13 on 3 Dec (UTC), fewer than the 2 wanted." in told.text

    @pytest.mark.parametrize("state", ["paused", "finishing", "preparing"])
    def test_not_while_the_run_does_not_go(self, state: str) -> None:
        assert codes(seen(NOON + timedelta(hours=9), state, least=1), Watch((Crowd(NOON, 0),))) == []


def curve(*losses: float) -> list[Point]:
    return [Point(step, loss, NOON + timedelta(seconds=step)) for step, loss in enumerate(losses, 1)]


STEADY = [3.0 + 0.02 * (-1) ** step for step in range(40)]


class TestALossThatJumped:
    def jumped(self, *losses: float) -> list[str]:
        return [fault.text for fault in run_alerts(seen(NOON, points=curve(*losses)))]

    @pytest.mark.parametrize("last", [3.8, 9.0, math.inf, math.nan])
    def test_the_last_step_far_above_the_median(self, last: float) -> None:
        (told,) = self.jumped(*STEADY, last)
        assert "Since step 41 at 12:04 on 3 Dec (UTC)" in told
        assert "about 3." in told
        assert ("not a finite number" in told) is not math.isfinite(last)

    @pytest.mark.parametrize("last", [3.0, 3.7, 0.5])
    def test_not_a_little_and_not_below(self, last: float) -> None:
        assert self.jumped(*STEADY, last) == []

    def test_it_began_with_the_first_of_the_steps_that_jumped(self) -> None:
        (told,) = self.jumped(*STEADY, 8.0, 9.0, 8.5)
        assert "Since step 41 at" in told
        assert "training loss has been 8.50" in told

    def test_it_is_over_when_the_loss_has_fallen_again(self) -> None:
        assert self.jumped(*STEADY, 9.0, 3.0) == []

    def test_a_loss_that_swings_widely_anyway_has_not_jumped(self) -> None:
        wide = [3.0 + 0.6 * (-1) ** step for step in range(40)]
        assert self.jumped(*wide, 5.0) == []

    def test_a_few_odd_steps_before_do_not_hide_it(self) -> None:
        (told,) = self.jumped(*STEADY[:20], 50.0, math.nan, *STEADY[:20], 9.0)
        assert "about 3." in told

    @pytest.mark.parametrize("losses", [[], [3.0], [3.0, 9.0], [3.0] * 7 + [9.0]])
    def test_the_first_steps_say_nothing(self, losses: list[float]) -> None:
        assert self.jumped(*losses) == []

    def test_what_was_long_before_does_not_count(self) -> None:
        assert self.jumped(*[3.0] * 100, *[9.0] * (BEFORE + 1)) == []


def seen_in(state: str, *peers: OnlinePeer, phase: str = "", **changes: Any) -> Seen:
    return Seen(picture(state, **changes), peers, phase, 0, datetime(2026, 11, 21, tzinfo=UTC))


def trouble_codes(
    of: Seen, verification: Verification | None = None, publication: Publication | None = None
) -> list[str]:
    return [fault.code for fault in run_troubles(of, verification, publication)]


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        (seen_in("open", TEO, RELAY, phase="accumulate"), []),
        (seen_in("open", TEO, AUXILIARY, phase="accumulate"), []),
        (seen_in("open", TEO, phase="accumulate"), ["E409"]),
        (seen_in("open", phase="accumulate"), ["E409"]),
        (seen_in("open"), []),  # no host drives this run, so its machines are unknown
        (seen_in("paused", TEO, phase="accumulate"), []),
        (seen_in("draft", dataset="failed"), ["E302"]),
        (seen_in("draft", dataset="ready"), []),
        (seen_in("finishing", release=FAILED), ["E312"]),
        (seen_in("finishing", release=Release(state="preparing", fault="E312: old")), []),
    ],
)
def test_each_cause(of: Seen, wrong: list[str]) -> None:
    assert trouble_codes(of) == wrong


def test_a_replay_counts_while_the_run_is_finishing() -> None:
    assert trouble_codes(seen_in("finishing"), REPLAY) == ["E341"]
    assert trouble_codes(seen_in("finished"), REPLAY) == []
    assert trouble_codes(seen_in("finishing"), Verification()) == []


def test_the_hub_counts_until_it_has_the_model() -> None:
    assert trouble_codes(seen_in("finished"), None, Publication(state="waiting", fault=str(NO_HUB))) == ["E346"]
    assert trouble_codes(seen_in("finished"), None, Publication(state="published", fault=str(NO_HUB))) == []


def test_delay_in_reaching_the_hub_is_told_with_its_start() -> None:
    since = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
    checkpoint = Publication(state="published", checkpoint_fault=str(NO_HUB), failing_since=since)
    assert trouble_codes(seen_in("open"), None, checkpoint) == ["E383", "E346"]
    (told, _) = run_troubles(seen_in("open"), None, checkpoint)
    assert "since 23:00 on 20 Nov (UTC) (E346)" in str(told)
    checkpoint.failing_since = since + timedelta(seconds=1)
    assert trouble_codes(seen_in("open"), None, checkpoint) == ["E346"]
    (told,) = run_troubles(seen_in("open"), None, checkpoint)
    assert str(told).endswith("Since 23:00 on 20 Nov (UTC).")
    assert trouble_codes(seen_in("open"), None, Publication(state="published", failing_since=since)) == []
    assert trouble_codes(seen_in("finished"), None, checkpoint) == [], "the release is there"


def test_the_worst_comes_first_and_what_follows_is_left_out() -> None:
    hub = Publication(state="waiting", fault=str(NO_HUB))
    assert trouble_codes(seen_in("finishing", release=FAILED), None, hub) == ["E312", "E346"]


@pytest.mark.parametrize("fault", REPLAY_FAULTS, ids=lambda fault: fault.code)
def test_a_release_needs_the_replay_and_its_disk(fault: Fault) -> None:
    assert trouble_codes(seen_in("finishing", release=FAILED), Verification(fault=str(fault))) == [fault.code]


def test_words_in_rows_keep_their_title() -> None:
    (fault,) = run_troubles(seen_in("finishing", release=FAILED), None, None)
    assert (fault.title, str(fault)) == ("Release failed", FAILED.fault)
