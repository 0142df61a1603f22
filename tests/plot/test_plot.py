"""The layout of a curve: every part lies inside the frame, and none covers another."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent import plot
from peer_agent.plot import (
    LOOKS,
    MOST_POINTS,
    Frame,
    Layout,
    Loss,
    bounds,
    chart_svg,
    lay_out,
    level_texts,
    perplexity_text,
    short_text,
    standing_svg,
    thinned,
    ticks,
    width_of,
    zero_bounds,
)
from tests.golden import golden
from tests.test_house import ROOT

LOSSES = st.floats(0, 20, allow_nan=False)
CASES: dict[str, list[dict[str, Any]]] = golden("curve")
LONG_CURVES = st.lists(LOSSES, min_size=1, max_size=1000).map(lambda losses: list(enumerate(losses, start=1)))


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


@given(LONG_CURVES)
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


WIDE, NARROW, CARD = Frame(720, 280), Frame(340, 210), Frame(1200, 630, 96, 56, 190, 84, letter=24)
FRAMES = st.sampled_from([WIDE, NARROW, CARD])
CURVE: list[Loss] = [(step, 8 - step / 100) for step in range(1, 401)]
CURVES = st.lists(LOSSES, min_size=1, max_size=400).map(lambda losses: list(enumerate(losses, start=1)))


def placed(points: list[Loss], unigram: float | None, frame: Frame = WIDE, **more: Any) -> Layout:
    layout = lay_out(points, unigram, frame, **more)
    assert layout is not None
    return layout


@given(CURVES, st.none() | LOSSES, FRAMES)
def test_everything_stands_inside_the_frame(points: list[Loss], unigram: float | None, frame: Frame) -> None:
    layout = placed(points, unigram, frame, heldout=[(step, loss + 4) for step, loss in points[:3]])
    heights = [*layout.levels, *([] if layout.unigram is None else [layout.unigram])]
    circles = [*layout.curve, *layout.heldout]
    assert all(frame.left - 1e-6 <= x <= frame.end + 1e-6 for x, _ in circles)
    assert all(frame.top - 1e-6 <= y <= frame.foot + 1e-6 for y in [*heights, *(y for _, y in circles)])
    assert all(frame.letter / 2 <= label.y <= frame.height for label in layout.labels)


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
    assert ("held" in [entry.mark for entry in layout.key]) == bool(case["drawn"])


def key(layout: Layout) -> list[tuple[str, str]]:
    return [(entry.mark, entry.words.text) for entry in layout.key]


def test_the_key_names_what_is_drawn() -> None:
    assert key(placed(CURVE, None)) == [], "a single curve needs no key"
    held, dotted = ("held", "held-out"), ("unigram", "guessing by frequency 6.10")
    assert key(placed(CURVE, 6.1, heldout=CURVE[:1])) == [("curve", "training"), held, dotted]
    assert key(placed(CURVE, 6.1, as_perplexity=True))[1:] == [("unigram", "guessing by frequency 446")]
    for unigram, text in ((4.0, "↓ guessing by frequency 4.00"), (12.0, "↑ guessing by frequency 12.00")):
        layout = placed([(1, 8.0), (9, 7.5)], unigram)
        assert (layout.unigram, key(layout)[1:]) == (None, [("", text)])


@pytest.mark.parametrize("frame", [Frame(720, 300, top=28), CARD])
def test_the_key_stands_in_one_row_above_the_plot(frame: Frame) -> None:
    layout = placed(CURVE, 6.1, frame, heldout=CURVE[:1])
    words = [entry.words for entry in layout.key]
    assert {each.y for each in words} == {frame.top - frame.letter}
    for each, following in pairwise(words):
        assert each.x + width_of(each.text, frame) <= following.x - 2 * frame.letter, "its line or circle fits between"
    assert words[0].x - 2 * frame.letter >= frame.left
    assert words[-1].x + width_of(words[-1].text, frame) == pytest.approx(frame.end)


def test_no_gridline_doubles_the_dotted_line() -> None:
    free, shared = placed(CURVE, None), placed(CURVE, 6.02)
    assert shared.unigram is not None
    assert len(shared.levels) == len(free.levels) - 1
    assert all(abs(level - shared.unigram) >= 10 for level in shared.levels)


def test_a_label_of_the_last_step_ends_with_the_plot() -> None:
    anchors = {label.text: label.anchor for label in placed(CURVE, None).labels}
    assert (anchors["400"], anchors["200"]) == ("end", "middle")


def test_steps_are_whole() -> None:
    texts = [label.text for label in placed([(1, 5.0), (2, 4.0)], None).labels if label.anchor != "end" or label.x > 40]
    assert texts == ["1", "2"]


def test_wider_words_need_more_paper() -> None:
    assert width_of("unigram 6.10", CARD) == 2 * width_of("unigram 6.10", WIDE)


def test_shown_points_are_finite_and_end_where_the_curve_does() -> None:
    layout = placed([(1, math.nan), *CURVE[1:], (401, math.inf)], None)
    assert (layout.points[0], layout.points[-1]) == (CURVE[1], CURVE[-1])
    assert len(layout.points) == len(layout.curve) == MOST_POINTS


def test_without_a_number_there_is_nothing_to_place() -> None:
    assert lay_out([], 6.1, WIDE) is None
    assert lay_out([(1, math.nan)], 6.1, WIDE) is None


STATIC: Path = ROOT / "frontend" / "static"
DRAWN = [(step, 8 - step / 100) for step in range(1, 401)]
LAYOUT = lay_out(DRAWN, 6.1, Frame(720, 280), heldout=[(100, 7.2), (400, 4.1)])
assert LAYOUT is not None
PAGE, FILE = chart_svg(LAYOUT, "It fell."), standing_svg(LAYOUT, "It fell.", "Loss")


def style_sheet() -> str:
    return (STATIC / "manyhands.css").read_text()


def declarations(block: str) -> dict[str, str]:
    return dict(re.findall(r"([\w-]+):\s*([^;]+);", block))


def test_the_inks_are_those_of_the_style_sheet_by_daylight() -> None:
    daylight = declarations(re.split(r"^:root[^{]*{", style_sheet(), flags=re.MULTILINE)[1].partition("}")[0])
    names = ("paper", "ink", "soft", "line", "accent")
    assert {name: getattr(plot, name.upper()) for name in names} == {name: daylight[f"--{name}"] for name in names}
    assert f'fill="{plot.ACCENT}"' in (STATIC / "hand.svg").read_text()


def test_every_part_looks_as_the_style_sheet_has_it() -> None:
    for name, look in LOOKS.items():
        blocks = re.findall(
            rf"^\.chart [^{{]*\.{name}\b[^{{]*{{([^}}]*)}}|^\.chart \.{name} {{([^}}]*)}}", style_sheet(), re.MULTILINE
        )
        (block,) = [first or second for first, second in blocks]
        inked = re.sub(r"var\(--(\w+)\)", lambda match: str(getattr(plot, match[1].upper())), block)
        assert declarations(inked) == look, name


def test_every_part_has_a_look() -> None:
    assert set(re.findall(r'class="(\w+)"', PAGE)) == {"chart", *LOOKS}


def test_a_page_colours_it_itself_and_a_file_needs_nothing() -> None:
    assert not re.search(r"style=|<style|<script|\son\w+=|#[0-9a-f]{6}", PAGE)
    assert not re.search(r"class=|style=|<style|<script|href", FILE)
    for drawing in (PAGE, FILE):
        assert ET.fromstring(drawing).attrib["aria-label"] == "It fell."


def test_both_draw_the_same() -> None:
    places = ("points", "x1", "x2", "y1", "y2", "cx", "cy", "x", "y")
    page, file = (
        [{name: part.get(name) for name in places} for part in ET.fromstring(drawing)] for drawing in (PAGE, FILE)
    )
    assert file[2 : 2 + len(page)] == page, "but for its paper, its title and its key"


def test_held_out_losses_are_open_circles_with_a_word() -> None:
    page, file = ([part.tag.rpartition("}")[2] for part in ET.fromstring(drawing)] for drawing in (PAGE, FILE))
    assert (page.count("circle"), file.count("circle")) == (3, 4), "two losses and the last step, one beside the word"
    assert [part.text for part in ET.fromstring(FILE)][-1] == "guessing by frequency 6.10"


def blocks() -> tuple[str, str]:
    sheet = (STATIC / "manyhands.css").read_text()
    system = re.search(r":root:not\(\[data-theme=\"light\"\]\) \{(.*?)\}", sheet, re.DOTALL)
    chosen = re.search(r":root\[data-theme=\"dark\"\] \{(.*?)\}", sheet, re.DOTALL)
    assert system is not None
    assert chosen is not None
    return system[1], chosen[1]


def test_a_chosen_dark_theme_is_that_of_a_dark_system() -> None:
    system, chosen = (dict(re.findall(r"(--[\w-]+): ([^;]+);", block)) for block in blocks())
    assert system == chosen
    sheet = (STATIC / "manyhands.css").read_text()
    used = set(re.findall(r"\.tint-\d \{ color: var\((--tint-\d)\); \}", sheet))
    assert used == {f"--tint-{number}" for number in range(8)} <= chosen.keys(), "tints follow the theme too"
