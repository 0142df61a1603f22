"""Figures of rounds in which the plan chose codecs and contributors."""

from types import SimpleNamespace
from typing import Any

import pytest

from peer_agent.protocol.identifiers import PeerId
from tests.benchmarks import averaging, overlap
from tests.benchmarks.averaging import Made, freedom_of
from tests.benchmarks.rig.coordinator import Timed
from tests.benchmarks.rig.swarm import ids_of, way_of
from tests.benchmarks.rivals.place import WARM_UP
from tests.emulation.setups import setup

FOUR = setup("four")
IDS = ids_of(FOUR)
ALL = set(IDS.values())
SLOW = IDS["trainer-4"]
FIRST, SECOND = WARM_UP, WARM_UP + 1


def record(peers: set[PeerId], samples: int = 16, *, is_whole: bool = True) -> Any:
    parts = tuple(SimpleNamespace(peer=peer) for peer in peers)
    return SimpleNamespace(contributions=parts, is_whole=is_whole, samples=samples)


def timed(cut_at: float, asked: set[PeerId], codec: Any, held_s: float) -> Timed:
    found = Timed(cut_at, committed_at=cut_at + held_s, asked=asked, left_out=ALL - asked, codec_down=codec)
    found.codecs = dict.fromkeys(asked, codec)
    found.held_at = dict.fromkeys(asked, cut_at + held_s)
    return found


def made() -> Made:
    """Return a run with two counted rounds. The plan left the slowest trainer out of the first. All trainers were in
    the second, with int4.
    """
    steps = {WARM_UP - 1: timed(0.0, ALL, "fp16", 4.0)}
    steps |= {FIRST: timed(10.0, ALL - {SLOW}, "fp16", 4.0), SECOND: timed(20.0, ALL, "int4", 6.0)}
    steps[SECOND + 1] = Timed(30.0)  # begun, but not finished
    records = [record(ALL)] * WARM_UP + [record(ALL - {SLOW}, 18), record(ALL, 26)]
    coordinator: Any = SimpleNamespace(steps=steps, entries=[(None, each) for each in records])
    errors, nothing = {FIRST: 0.25, SECOND: 0.75}, SimpleNamespace()
    counted: Any = nothing
    return Made(FOUR, way_of(FOUR, "plan"), FOUR.nominal(), coordinator, IDS, counted, counted, 2, errors, {})


def test_floors_are_of_the_codecs_and_contributors_of_each_round() -> None:
    figures = freedom_of(made())
    first, second = figures["floors_s"]
    assert first == pytest.approx(3.2, rel=1e-3), "20 MB at 50 Mb/s: who has 20 Mb/s sat out"
    assert second == pytest.approx(8.0 * 0.53 / 2, rel=0.01), "0.53 bytes a value at 20 Mb/s"
    assert figures["floor_s"] == pytest.approx((first + second) / 2)
    assert figures["ratio"] == pytest.approx((4.0 / first + 6.0 / second) / 2)


def test_codecs_and_absences_are_counted_and_errors_are_medians() -> None:
    figures = freedom_of(made())
    assert (figures["codecs_up"], figures["codecs_down"]) == ({"fp16": 3, "int4": 4}, {"fp16": 1, "int4": 1})
    assert figures["left_out"] == {"trainer-4": 1}
    assert figures["error_rms"] == 0.5


def test_a_round_is_whole_where_all_who_were_asked_are_in_it() -> None:
    run = made()
    assert [averaging._is_ok(run, step) for step in run.counted] == [True, True]
    run.coordinator.steps[FIRST].asked = ALL
    assert not averaging._is_ok(run, FIRST), "asked, and not in it"
    del run.coordinator.steps[SECOND].held_at[SLOW]
    assert not averaging._is_ok(run, SECOND), "in it, and without its averages"
    run = made()
    run.coordinator.entries[FIRST] = run.coordinator.entries[FIRST][0], record(ALL - {SLOW}, is_whole=False)
    assert not averaging._is_ok(run, FIRST), "a part came too late"


def test_samples_count_from_prior_commit_and_absence_by_record() -> None:
    run = made()
    assert overlap.samples_per_s(run) == pytest.approx((18 + 26) / (26.0 - 4.0))
    assert [averaging.absent_from(run.coordinator, ALL, step) for step in run.counted] == [{SLOW}, set()]


def test_rounds_continue_after_an_absence_where_it_is_measured() -> None:
    run, way = made(), overlap.way(FOUR, 8.0, "fast")
    assert averaging.last_step(run.coordinator, ALL, way, 2) == FIRST + 1 + overlap.LATER
    assert averaging.last_step(run.coordinator, ALL - {SLOW}, way, 2) == WARM_UP + 2
    assert averaging.last_step(run.coordinator, ALL, way_of(FOUR, "plan"), 2) == WARM_UP + 2
