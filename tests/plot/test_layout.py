"""Where the parts of a curve stand: inside the frame, and out of one another's way."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.plot.layout import Frame, Layout, lay_out, width_of
from peer_agent.plot.scales import MOST_POINTS, Loss
from tests.golden import golden

WIDE, NARROW, CARD = Frame(720, 280), Frame(340, 210), Frame(1200, 630, 96, 56, 190, 84, letter=24)
FRAMES = st.sampled_from([WIDE, NARROW, CARD])
CURVE: list[Loss] = [(step, 8 - step / 100) for step in range(1, 401)]
LOSSES = st.floats(0, 20, allow_nan=False)
CURVES = st.lists(LOSSES, min_size=1, max_size=400).map(lambda losses: list(enumerate(losses, start=1)))


def placed(points: list[Loss], unigram: float | None, frame: Frame = WIDE, **more: Any) -> Layout:
    layout = lay_out(points, unigram, frame, **more)
    assert layout is not None
    return layout


@given(CURVES, st.none() | LOSSES, FRAMES)
def test_everything_stands_inside_the_frame(points: list[Loss], unigram: float | None, frame: Frame) -> None:
    layout = placed(points, unigram, frame, heldout=[(step, loss + 4) for step, loss in points[:3]])
    heights = [*layout.levels, *([] if layout.unigram is None else [layout.unigram])]
    circles = [*layout.curve, *layout.heldout, *([layout.legend[0]] if layout.legend else [])]
    assert all(frame.left - 1e-6 <= x <= frame.end + 1e-6 for x, _ in circles)
    assert all(frame.top - 1e-6 <= y <= frame.foot + 1e-6 for y in [*heights, *(y for _, y in circles)])
    words = [*layout.labels, *([layout.note] if layout.note else [])]
    assert all(frame.letter / 2 <= text.y <= frame.height for text in words)


@given(CURVES, FRAMES)
def test_a_lower_loss_stands_lower(points: list[Loss], frame: Frame) -> None:
    losses, heights = [loss for _, loss in points], [y for _, y in placed(points, None, frame).curve]
    if len(points) <= 300:
        assert heights[losses.index(max(losses))] == min(heights)
        assert heights[losses.index(min(losses))] == max(heights)


@pytest.mark.parametrize("case", golden("curve")["heldout"], ids=lambda case: case["why"])
def test_held_out_losses_stand_on_the_curves_steps(case: dict[str, Any]) -> None:
    points = [(1, 7.0), (case["last"], 6.0)]
    held = [tuple(pair) for pair in case["heldout"]]
    layout = placed(points, None, heldout=held)
    drawn = placed([*points, *map(tuple, case["drawn"])], None).curve[2:] if case["drawn"] else []
    assert [x for x, _ in layout.heldout] == [x for x, _ in drawn]
    assert (layout.legend is not None) == bool(case["drawn"])


@pytest.mark.parametrize(("last", "is_above"), [(400, True), (60, True), (188, False)])
@pytest.mark.parametrize("frame", [WIDE, NARROW, CARD])
def test_what_the_dotted_line_is_keeps_clear_of_the_curve(frame: Frame, last: int, is_above: bool) -> None:
    layout = placed(CURVE[:last], 6.1, frame)
    assert layout.note is not None
    assert layout.unigram is not None
    assert (layout.note.text, layout.note.anchor, layout.note.x) == ("unigram 6.10", "end", frame.end)
    assert (layout.note.y < layout.unigram) == is_above
    assert not layout.note.y - frame.letter <= layout.curve[-1][1] <= layout.note.y


def test_without_room_below_it_stands_above() -> None:
    layout = placed([(1, 8.0), (2, 5.001)], 5.0, Frame(720, 90))
    assert layout.note is not None
    assert layout.unigram is not None
    assert layout.note.y < layout.unigram


def test_the_legend_gives_way_to_a_dotted_line_down_there() -> None:
    free, shared = (placed(CURVE[:200], unigram, heldout=CURVE[:1]).legend for unigram in (None, 5.9))
    assert free is not None
    assert shared is not None
    assert shared[1].y < free[1].y


def test_a_label_of_the_last_step_ends_with_the_plot() -> None:
    anchors = {label.text: label.anchor for label in placed(CURVE, None).labels}
    assert (anchors["400"], anchors["200"]) == ("end", "middle")


def test_steps_are_whole() -> None:
    texts = [label.text for label in placed([(1, 5.0), (2, 4.0)], None).labels if label.anchor != "end" or label.x > 40]
    assert texts == ["1", "2"]


def test_wider_words_need_more_paper() -> None:
    assert width_of("unigram 6.10", CARD) == 2 * width_of("unigram 6.10", WIDE)


def test_the_points_that_are_shown_are_numbers_and_end_as_the_curve_does() -> None:
    layout = placed([(1, math.nan), *CURVE[1:], (401, math.inf)], None)
    assert (layout.points[0], layout.points[-1]) == (CURVE[1], CURVE[-1])
    assert len(layout.points) == len(layout.curve) == MOST_POINTS


def test_without_a_number_there_is_nothing_to_place() -> None:
    assert lay_out([], 6.1, WIDE) is None
    assert lay_out([(1, math.nan)], 6.1, WIDE) is None
