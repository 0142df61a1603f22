"""The loss curve: pure."""

import math
import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.selectors import Measured, Point
from web.run_picture.chart import MOST_POINTS, NARROW, WIDE, ChartFrame, loss_chart, summary, thinned, ticks

CURVE = [Point(step, 8 - step / 100) for step in range(1, 401)]
START = datetime(2026, 11, 21, tzinfo=UTC)
LOSSES = st.floats(0, 20, allow_nan=False)
CURVES = st.lists(LOSSES, min_size=1, max_size=1000).map(
    lambda losses: [Point(step, loss) for step, loss in enumerate(losses, start=1)]
)


@given(CURVES)
def test_thinning_keeps_the_ends_and_the_order(points: list[Point]) -> None:
    shown = thinned(points)
    assert len(shown) <= MOST_POINTS
    assert (shown[0], shown[-1]) == (points[0], points[-1])
    assert [point.step for point in shown] == sorted({point.step for point in shown})
    assert min(points, key=lambda p: p.loss).loss <= min(point.loss for point in shown) + 1e-9


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


@given(CURVES, st.none() | LOSSES, st.sampled_from([WIDE, NARROW]))
def test_everything_is_drawn_inside_the_frame(points: list[Point], entropy: float | None, frame: ChartFrame) -> None:
    drawing = ET.fromstring(loss_chart(points, entropy, frame))
    line = next(part for part in drawing.iter() if part.get("class") == "curve")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert all(frame.left - 1 <= x <= frame.width - frame.right + 1 for x, _ in places)
    assert all(frame.top - 1 <= y <= frame.height - frame.bottom + 1 for _, y in places)


def test_the_unigram_entropy_is_a_labelled_line() -> None:
    drawing = loss_chart(CURVE, 6.1)
    assert 'class="unigram"' in drawing
    assert "unigram 6.10" in drawing
    assert "unigram" not in loss_chart(CURVE, None)


def test_its_label_keeps_clear_of_the_curve() -> None:
    for points, is_above in ((CURVE, True), (CURVE[:60], True), (CURVE[:188], False)):
        drawing = ET.fromstring(loss_chart(points, 6.1))
        line, paper, note = (
            next(p for p in drawing if p.get("class") == name) for name in ("unigram", "under", "note")
        )
        assert (note.attrib["x"], note.attrib["text-anchor"]) == ("712", "end")
        level, top = float(line.attrib["y1"]), float(paper.attrib["y"])
        assert (top + float(paper.attrib["height"]) <= level) == is_above
        assert top < float(note.attrib["y"]) < top + float(paper.attrib["height"])
        end = float(next(p for p in drawing if p.get("class") == "now").attrib["cy"])
        assert not top <= end <= top + float(paper.attrib["height"])


def test_held_out_losses_are_open_circles_with_a_word() -> None:
    held = [Measured(index, index, 8.5 - index / 100, START) for index in (100, 400, 500)]
    drawing = ET.fromstring(loss_chart(CURVE, 6.1, WIDE, held))
    drawn = [part for part in drawing if part.get("class") == "held"]
    assert len(drawn) == 3, "two on the curve's steps, none beyond it, one beside the word"
    assert "held-out" in [part.text for part in drawing]
    assert all(WIDE.top <= float(part.attrib["cy"]) <= WIDE.height - WIDE.bottom for part in drawn)
    assert "held" not in loss_chart(CURVE, 6.1)


def test_nothing_is_inline_that_the_policy_forbids() -> None:
    assert not re.search(r"style=|<style|<script|\son\w+=", loss_chart(CURVE, 6.1))


def test_without_points_there_is_no_chart() -> None:
    assert loss_chart([], 6.1) == ""
    assert loss_chart([Point(1, math.nan)], 6.1) == ""
    assert summary([], 6.1) == "No step is committed yet."


def test_the_summary_says_what_the_curve_says() -> None:
    assert summary(CURVE, 6.1) == (
        "Loss fell from 7.99 nats per token at step 1 to 4.00 at step 400. "
        "That is below 6.10, what guessing by frequency alone would cost (unigram)."
    )
    held = [Measured(100, 100, 7.1, START), Measured(300, 300, 5.5, START)]
    assert summary(CURVE, 6.1, held).endswith("(unigram). On held-out text: 5.50 at step 300.")
    assert summary(CURVE[:1], None) == "Loss is 7.99 nats per token at step 1."
