"""The picture is well-formed, stays within its frame, and says its numbers in words too."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.publishing.curve import DRAWN, HEIGHT, WIDTH, loss_curve, thinned, ticks_of

LOSSES = st.lists(st.floats(1e-3, 20), min_size=2, max_size=60)


@given(LOSSES, st.none() | st.floats(1e-3, 20))
def test_everything_is_within_the_frame(losses: list[float], unigram: float | None) -> None:
    picture = ET.fromstring(loss_curve(list(enumerate(losses, 1)), unigram))
    line = next(part for part in picture.iter() if part.tag.endswith("polyline")).attrib["points"]
    points = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(points) == len(losses)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert f"to {losses[-1]:.2f} at step {len(losses)}" in picture.attrib["aria-label"]


@given(LOSSES)
def test_a_lower_loss_is_drawn_lower(losses: list[float]) -> None:
    line = re.search(r'points="([^"]+)"', loss_curve(list(enumerate(losses)), None))
    assert line is not None
    heights = [float(pair.split(",")[1]) for pair in line[1].split()]
    assert heights[losses.index(max(losses))] == min(heights)
    assert heights[losses.index(min(losses))] == max(heights)


@given(LOSSES)
def test_ticks_enclose_the_values_and_are_few(losses: list[float]) -> None:
    ticks = ticks_of(losses)
    assert ticks[0] <= min(losses) + 1e-6
    assert max(losses) <= ticks[-1] + 1e-6
    assert 2 <= len(ticks) <= 12


@pytest.mark.parametrize("length", [2, DRAWN, DRAWN + 1, 10 * DRAWN])
def test_long_runs_are_thinned_and_keep_their_end(length: int) -> None:
    points = [(step, 1.0) for step in range(length)]
    assert len(thinned(points)) <= DRAWN + 1
    assert thinned(points)[-1] == points[-1]


def test_what_is_not_a_number_is_left_out() -> None:
    assert "nan" not in loss_curve([(1, 5.0), (2, float("nan")), (3, 4.0)], None)
