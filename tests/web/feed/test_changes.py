"""A picture of a run, plus its changes, gives the next picture. The front end reads the same golden vectors."""

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import golden
from web.feed.changes import LISTS, POINTS, apply, changes
from web.run_picture.picture import Picture

PLAIN = st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.booleans()
ROWS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from("abcdef"), "samples": st.integers(0, 3), "moved": st.integers(-1, 1)}
    ),
    max_size=6,
    unique_by=lambda row: row["key"],
)
POINTS_OF_CURVES = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 9)).map(list), max_size=12)
PICTURES = st.fixed_dictionaries(
    {"step": st.integers(0, 4), "sentence": st.text(max_size=4), "loss": PLAIN, "written": st.sampled_from(["", "400"])}
    | {POINTS: POINTS_OF_CURVES, **dict.fromkeys(LISTS, ROWS)}
)

VECTORS: list[dict[str, Any]] = golden("feed")["steps"]
WHY = [str(vector["why"]) for vector in VECTORS]


def carried(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(PICTURES, PICTURES)
def test_a_picture_and_its_change_are_the_next_picture(before: Picture, after: Picture) -> None:
    untouched = copy.deepcopy(before)
    assert apply(before, carried(changes(before, after))) == after
    assert before == untouched


@given(st.lists(PICTURES, min_size=2, max_size=5))
def test_picture_and_changes_are_the_fresh_picture(pictures: list[Picture]) -> None:
    shown = pictures[0]
    for before, after in pairwise(pictures):
        shown = apply(shown, carried(changes(before, after)))
    assert shown == pictures[-1]


@given(PICTURES)
def test_nothing_changed_is_an_empty_change(picture: Picture) -> None:
    assert changes(picture, copy.deepcopy(picture)) == {}


def test_a_step_sends_one_point_and_not_the_curve() -> None:
    before: Picture = {"step": 2, POINTS: [[1, 6.0], [2, 5.0]], **{name: [] for name in LISTS}}
    after = {**before, "step": 3, POINTS: [*before[POINTS], [3, 4.5]]}
    assert changes(before, after) == {"values": {"step": 3}, "points": {"from": 2, "add": [[3, 4.5]]}}


@pytest.mark.parametrize("vector", VECTORS, ids=WHY)
def test_the_golden_vectors(vector: dict[str, Any]) -> None:
    before, change, after = vector["before"], vector["change"], vector["after"]
    assert changes(before, after) == change
    assert apply(before, change) == after


def test_the_golden_messages_are_what_a_socket_says() -> None:
    from web.feed.changes import change_message, picture_message

    first, second = golden("feed")["messages"]
    vector = golden("feed")["steps"][0]
    assert json.loads(picture_message(7, vector["before"])) == first
    assert json.loads(change_message(8, vector["change"])) == second
