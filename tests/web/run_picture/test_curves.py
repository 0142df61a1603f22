"""The charts on a run's page, and their summaries in words."""

import math
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest

from runs.selectors import Measured, Point
from web.run_picture.curves import (
    NARROW,
    NARROW_FURTHER,
    QUANTITIES,
    WIDE,
    WIDE_FURTHER,
    chart_of,
    charts_of,
    key_facts,
    loss_chart,
    summary,
)

CURVE = [Point(step, 8 - step / 100) for step in range(1, 401)]
START = datetime(2026, 11, 21, tzinfo=UTC)
FURTHER = [Point(step, 8 - step / 100, None, 30 + step % 7, step, 3e-4, 12_400_000) for step in range(1, 401)]


def test_chart_has_the_curve_the_baseline_and_heldout_losses() -> None:
    held = [Measured(index, index, 8.5 - index / 100, START) for index in (100, 400, 500)]
    for frame in (WIDE, NARROW):
        drawing = ET.fromstring(loss_chart(CURVE, 6.1, frame, held))
        parts = [part.get("class") for part in drawing]
        assert [parts.count(name) for name in ("curve", "now", "unigram", "held")] == [1, 1, 1, 2]
        assert drawing.attrib["aria-label"] == summary(CURVE, 6.1, held)
        assert (drawing.attrib["width"], drawing.attrib["height"]) == (str(frame.width), str(frame.height))
    assert not {"held", "unigram"} & {part.get("class") for part in ET.fromstring(loss_chart(CURVE, None))}


def test_without_points_there_is_no_chart() -> None:
    assert loss_chart([], 6.1) == ""
    assert loss_chart([Point(1, math.nan)], 6.1) == ""
    assert summary([], 6.1) == "No steps yet."


def test_the_summary_says_what_the_curve_says() -> None:
    assert summary(CURVE, 6.1) == (
        "Training loss fell from 7.99 to 4.00 nats per token. Guessing by frequency alone would score 6.10."
    )
    held = [Measured(100, 100, 7.1, START), Measured(300, 300, 5.5, START)]
    assert summary(CURVE, 6.1, held).endswith("On held-out data: 5.50 at step 300, the best so far.")
    figures = {"perplexity": 244.69, "masked accuracy": 0.2345}
    held = [*held, Measured(400, 400, 5.6, START, figures)]
    assert summary(CURVE, 6.1, held).endswith(
        "On held-out data: 5.60 (masked accuracy 23.4%, perplexity 244.7) at step 400; the best was 5.50 at step 300."
    )
    assert summary(CURVE[:1], None) == "Training loss is 7.99 nats per token at step 1."
    assert summary(CURVE[:1], None, unit="masked word") == "Training loss is 7.99 nats per masked word at step 1."


def test_a_chart_of_perplexities_is_the_same_with_other_words() -> None:
    loss, perplexity = (loss_chart(CURVE, 6.1, as_perplexity=as_perplexity) for as_perplexity in (False, True))
    assert polyline_of(loss) == polyline_of(perplexity)
    assert (">5<" in loss, ">148<" in perplexity, ">5<" in perplexity) == (True, True, False)


def test_the_key_names_what_the_chart_shows() -> None:
    held = [Measured(100, 100, 7.1, START)]
    assert key_facts(CURVE, [], None) == {"held": False}
    assert key_facts([], [], 6.1) == {"held": False}
    assert key_facts(CURVE, held, 6.1) == {"held": True, "beyond": "", "loss": "6.10", "perplexity": "446"}
    assert [key_facts(CURVE[:9], held[:0], far)["beyond"] for far in (4.0, 12.0)] == ["↓", "↑"]


def polyline_of(chart: str) -> str:
    return chart.partition("<polyline")[2].partition("/>")[0]


def test_every_chart_says_its_newest_and_its_highest_value() -> None:
    assert {each["key"]: each["summary"] for each in charts_of(FURTHER)} == {
        "speed": "Samples per second in step 400: 31; the highest was 36 in step 6.",
        "machines": "Machines in step 400: 400, the highest so far.",
        "rate": "Learning rate in step 400: 3e-4, the highest so far.",
        "bytes": "Gradients averaged in step 400: 12.4 MB, the highest so far.",
    }
    assert charts_of(FURTHER[:1])[1]["summary"] == "Machines in step 1: 1."


def test_of_what_is_not_known_there_is_no_chart() -> None:
    assert charts_of([]) == []
    assert charts_of([Point(1, 5.0)]) == []
    before = [Point(1, 5.0, None, 30.0, 2), Point(2, 4.0, None, None, 3), Point(3, math.nan, None, 9.0, 900)]
    assert [each["key"] for each in charts_of(before)] == ["speed", "machines"]
    assert charts_of(before)[0]["summary"] == "Samples per second in step 1: 30.", "the last that is known and drawn"
    assert charts_of([Point(1, 5.0, None, math.inf, 2)])[0]["key"] == "machines", "a step in no time says no speed"
    assert chart_of(before, "rate", WIDE_FURTHER) == ""
    assert chart_of(before, "<b>", WIDE_FURTHER) == ""


@pytest.mark.parametrize("key", [quantity.key for quantity in QUANTITIES])
def test_a_chart_is_one_line_from_zero_with_its_summary(key: str) -> None:
    for frame in (WIDE_FURTHER, NARROW_FURTHER):
        drawing = ET.fromstring(chart_of(FURTHER, key, frame))
        parts = [part.get("class") for part in drawing]
        assert [parts.count(name) for name in ("curve", "now", "unigram", "held")] == [1, 1, 0, 0]
        assert drawing.attrib["aria-label"] == next(
            each["summary"] for each in charts_of(FURTHER) if each["key"] == key
        )
        assert next(part.text for part in drawing if part.get("text-anchor") == "end") in {"0", "0 B"}
