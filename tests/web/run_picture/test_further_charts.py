"""What else is drawn over a run's steps: only what is known, in pictures that stand without a script. Pure."""

import math
from xml.etree import ElementTree as ET

import pytest

from runs.selectors import Point
from web.run_picture.charts.further import NARROW, QUANTITIES, WIDE, chart_of, charts_of

CURVE = [Point(step, 8 - step / 100, None, 30 + step % 7, step, 3e-4, 12_400_000) for step in range(1, 401)]


def test_every_chart_says_its_newest_and_its_highest_value() -> None:
    assert {each["key"]: each["summary"] for each in charts_of(CURVE)} == {
        "speed": "Samples per second in step 400: 31; the highest was 36 in step 6.",
        "machines": "Machines in step 400: 400, the highest so far.",
        "rate": "Learning rate in step 400: 3e-4, the highest so far.",
        "bytes": "Gradients averaged in step 400: 12.4 MB, the highest so far.",
    }
    assert charts_of(CURVE[:1])[1]["summary"] == "Machines in step 1: 1."


def test_of_what_is_not_known_there_is_no_chart() -> None:
    assert charts_of([]) == []
    assert charts_of([Point(1, 5.0)]) == []
    before = [Point(1, 5.0, None, 30.0, 2), Point(2, 4.0, None, None, 3), Point(3, math.nan, None, 9.0, 900)]
    assert [each["key"] for each in charts_of(before)] == ["speed", "machines"]
    assert charts_of(before)[0]["summary"] == "Samples per second in step 1: 30.", "the last that is known and drawn"
    assert charts_of([Point(1, 5.0, None, math.inf, 2)])[0]["key"] == "machines", "a step in no time says no speed"
    assert chart_of(before, "rate", WIDE) == ""
    assert chart_of(before, "<b>", WIDE) == ""


@pytest.mark.parametrize("key", [quantity.key for quantity in QUANTITIES])
def test_a_chart_is_one_line_from_zero_with_its_summary(key: str) -> None:
    for frame in (WIDE, NARROW):
        drawing = ET.fromstring(chart_of(CURVE, key, frame))
        parts = [part.get("class") for part in drawing]
        assert [parts.count(name) for name in ("curve", "now", "unigram", "held")] == [1, 1, 0, 0]
        assert drawing.attrib["aria-label"] == next(each["summary"] for each in charts_of(CURVE) if each["key"] == key)
        assert next(part.text for part in drawing if part.get("text-anchor") == "end") in {"0", "0 B"}
