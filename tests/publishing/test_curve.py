"""The card's picture is well-formed, needs nothing else, and says its numbers in words too."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.plot.scales import MOST_POINTS
from peer_agent.publishing.curve import FRAME, loss_curve

LOSSES = st.lists(st.floats(1e-3, 20), min_size=2, max_size=60)


@given(LOSSES, st.none() | st.floats(1e-3, 20))
def test_everything_is_within_the_frame(losses: list[float], unigram: float | None) -> None:
    picture = ET.fromstring(loss_curve(list(enumerate(losses, 1)), unigram))
    line = next(part for part in picture.iter() if part.tag.endswith("polyline")).attrib["points"]
    points = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(points) == len(losses)
    assert all(0 <= x <= FRAME.width and 0 <= y <= FRAME.height for x, y in points)
    assert f"to {losses[-1]:.2f} at step {len(losses)}" in picture.attrib["aria-label"]
    assert ("token frequencies alone" in "".join(picture.itertext())) == (unigram is not None)


@pytest.mark.parametrize("length", [2, MOST_POINTS, MOST_POINTS + 1, 10 * MOST_POINTS])
def test_long_runs_are_thinned(length: int) -> None:
    line = re.search(r'points="([^"]+)"', loss_curve([(step, 1.0) for step in range(length)], None))
    assert line is not None
    assert len(line[1].split()) == min(length, MOST_POINTS)


def test_what_is_not_a_number_is_left_out() -> None:
    picture = loss_curve([(1, float("nan")), (2, 5.0), (3, 4.0), (4, float("nan"))], None)
    assert "nan" not in picture
    assert "Loss from 5.00 at step 2 to 4.00 at step 3." in picture
