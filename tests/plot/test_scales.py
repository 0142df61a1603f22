"""Ranges, round numbers and their texts; what the live page has too is in the golden cases that both languages read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.plot.scales import (
    MOST_POINTS,
    Loss,
    bounds,
    level_texts,
    note_side,
    perplexity_text,
    short_text,
    thinned,
    ticks,
    zero_bounds,
)
from tests.golden import golden

CASES: dict[str, list[dict[str, Any]]] = golden("curve")
CURVE: list[Loss] = [(step, 8 - step / 100) for step in range(1, 401)]
LOSSES = st.floats(0, 20, allow_nan=False)
CURVES = st.lists(LOSSES, min_size=1, max_size=1000).map(lambda losses: list(enumerate(losses, start=1)))


@pytest.mark.parametrize("case", CASES["bounds"], ids=lambda case: case["why"])
def test_the_range_of_the_axis(case: dict[str, Any]) -> None:
    assert bounds(case["losses"], case["unigram"]) == pytest.approx(tuple(case["range"]))


def test_labels_of_one_axis_have_equally_many_decimals() -> None:
    for case in CASES["perplexity_text"]:
        assert perplexity_text(case["loss"]) == case["text"]
    assert [level_texts(case["levels"]) for case in CASES["level_texts"]] == [
        case["texts"] for case in CASES["level_texts"]
    ]


@pytest.mark.parametrize("case", CASES["zero_bounds"], ids=lambda case: case["why"])
def test_amounts_begin_at_zero(case: dict[str, Any]) -> None:
    values = [value for value in case["values"] if value is not None]
    assert zero_bounds(values) == pytest.approx(tuple(case["range"]))


def test_amounts_are_written_short() -> None:
    for case in CASES["short_text"]:
        assert short_text(case["value"]) == case["text"]


def test_the_words_of_the_dotted_line_keep_clear_of_the_curves_end() -> None:
    for case in CASES["note_side"]:
        assert note_side(case["near"], case["level"], case["room"]) == case["side"], case


@given(CURVES)
def test_thinning_keeps_the_ends_and_the_order(points: list[Loss]) -> None:
    shown = thinned(points)
    assert len(shown) <= MOST_POINTS
    assert (shown[0], shown[-1]) == (points[0], points[-1])
    assert [step for step, _ in shown] == sorted({step for step, _ in shown})
    assert min(loss for _, loss in points) <= min(loss for _, loss in shown) + 1e-9


def test_a_short_curve_is_not_thinned() -> None:
    assert thinned(CURVE[:300]) == CURVE[:300]


@given(LOSSES, st.floats(0.001, 1e9))
def test_ticks_lie_within_and_are_few(low: float, width: float) -> None:
    marks = ticks(low, low + width)
    assert len(marks) <= 6
    assert all(low - 1e-6 * width <= mark <= low + width * (1 + 1e-6) for mark in marks)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0, 10, [0, 2, 4, 6, 8, 10]), (6.3, 7.6, [6.5, 7, 7.5]), (3, 3, [3])]
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)
