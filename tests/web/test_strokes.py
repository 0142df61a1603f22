"""Drawings of strokes: each count and tint is exact, and nothing changes without a reason."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from web import strokes
from web.strokes import GHOST, spread

PARTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10_000)), max_size=8, unique_by=lambda part: part[0])


@given(PARTS, st.integers(0, 10_000), st.integers(1, 200))
def test_strokes_are_shared_out_exactly(parts: list[tuple[int, int]], left: int, count: int) -> None:
    found = spread(parts, left, count)
    whole = sum(amount for _, amount in parts)
    filled = sum(name != GHOST for name in found)
    assert len(found) == count
    assert GHOST not in found[:filled], "what is still to come stands last"
    assert abs(filled - (count * whole / (whole + left) if whole else 0)) <= 0.5 + 1e-9 or filled == count
    for name, amount in parts:
        assert abs(found.count(name) - (filled * amount / whole if whole else 0)) < 1


def test_the_stroke_that_is_left_goes_to_the_largest_remainder() -> None:
    found = spread([(0, 1), (1, 1), (2, 2)], 0, 5)
    assert [found.count(tint) for tint in (0, 1, 2)] == [1, 1, 3]


def drawn(svg: str) -> int:
    """Return the number of strokes in a drawing."""
    return len(re.findall(r"M[\d.]+ [\d.]+V", svg))


def test_a_step_fills_stroke_by_stroke() -> None:
    empty, half, full = (strokes.strip([(0, done)], 96 - done, "") for done in (0, 48, 96))
    assert [drawn(each) for each in (empty, half, full)] == [strokes.STRIP] * 3
    assert [each.count('class="ghost"') for each in (empty, half, full)] == [1, 1, 0]
    assert "new tint-0" in half, "the newest one rises"


def test_the_newest_steps_are_as_tall_as_their_samples_and_shared_out_exactly() -> None:
    svg = strokes.history([[(0, 10), (1, 20)], [(1, 15)], [(0, 30), (1, 30)]], "")
    found = dict(re.findall(r'class="(?:new )?(tint-\d)" d="([^"]*)"', svg))
    per = strokes.STRIP // 3
    assert drawn(svg) == strokes.STRIP
    zero = sum(drawn(path) for name, path in re.findall(r'class="(?:new )?(tint-0)" d="([^"]*)"', svg))
    assert abs(zero - per * (1 / 3 + 0 + 1 / 2)) <= 1
    assert set(re.findall(r"V([\d.]+)", found["tint-1"])) <= {"19", "25.5", "6"}
    assert set(re.findall(r"V([\d.]+)", svg)) == {"19", "25.5", "6"}
    assert drawn(strokes.history([], "")) == 0


@pytest.mark.parametrize("state", ["waiting", "running", "paused", "failed", "finished"])
def test_a_run_is_drawn_in_each_state(state: str) -> None:
    points = [] if state == "waiting" else [(1, 6.0), (50, 4.0), (80, 3.5)]
    svg = strokes.hero(points, 100, [(1, 3), (2, 1)] if points else [], "<Loss>", state=state)
    assert "&lt;Loss&gt;" in svg
    assert svg.count('class="yours"') == (state == "waiting")
    assert svg.count('class="broken"') == (state == "failed")
    assert drawn(svg) == (1 if state == "waiting" else round(0.8 * strokes.HERO)), "nothing for the steps to come"
    coordinates = [float(y) for y in re.findall(r"[ V](-?[\d.]+)", svg.partition(">")[2])]
    assert all(0 <= y <= 1184 for y in coordinates)


@pytest.mark.parametrize(("done", "share"), [(10, 0.5), (400, 0.5), (800, 0.8)])
def test_before_its_half_a_run_is_shown_up_to_twice_its_step(done: int, share: float) -> None:
    svg = strokes.hero([(1, 6.0), (done, 4.0)], 1000, [(1, 3)], "")
    filled = sum(drawn(path) for path in re.findall(r'class="(?:lesser )?tint-1" d="([^"]*)"', svg))
    assert filled == round(share * strokes.HERO)


@pytest.mark.parametrize(
    ("here", "goal", "people", "wanted"),
    [(2, 5, 2, 3), (0, 5, 0, 5), (7, 5, 7, 0), (50, 200, 15, 45), (300, 200, 60, 0)],
)
def test_each_person_has_a_stroke_and_each_one_wanted_a_place(here: int, goal: int, people: int, wanted: int) -> None:
    svg = strokes.places([3] * here, goal)
    found = {name: drawn(path) for name, path in re.findall(r'class="([\w-]+)" d="([^"]*)"', svg)}
    assert (found.get("tint-3", 0), found.get("wanted", 0)) == (people, wanted)


def test_a_certificate_marks_the_persons_part() -> None:
    for part, marked in ((0.25, 25), (0.0001, 1)):
        svg = strokes.band(strokes.marked(3, part), [(1, 6.0), (100, 3.0)], "")
        own = re.search(r'class="tint-3" d="([^"]*)"', svg)
        assert own is not None
        assert (drawn(own[1]), drawn(svg)) == (marked, 100)


def test_each_percent_has_a_stroke_beside_those_of_its_person() -> None:
    svg = strokes.shares([(3, 600), (3, 100), (5, 200), ("rest", 100)], "")
    places = {
        name: [float(x) for x in re.findall(r"M([\d.]+)", path)]
        for name, path in re.findall(r'class="([\w-]+)" d="([^"]*)"', svg)
    }
    assert {name: len(each) for name, each in places.items()} == {"tint-3": 70, "tint-5": 20, "rest": 10}
    first = places["tint-3"]
    assert first[60] - first[59] > 1.5 * (first[1] - first[0]), "two people of the same tint stand apart"
    assert max(first) < min(places["tint-5"]) < max(places["tint-5"]) < min(places["rest"])


def test_days_without_samples_stay_low() -> None:
    svg = strokes.days([0, 4, 16], 3, "")
    heights = {name: re.findall(r"V([\d.]+)", path) for name, path in re.findall(r'class="([\w-]+)" d="([^"]*)"', svg)}
    coming = heights.pop("rest")
    assert coming == ["37"] * (strokes.FIRST_DAYS - 3), "days to come are dots"
    assert heights == {"ghost": ["34"], "tint-3": ["18.5", "6"]}
