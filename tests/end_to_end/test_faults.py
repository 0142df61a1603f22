"""The shortest rows of the fault table: what hangs or dies, the run goes on, and nothing is lost, doubled or different.

`python -m tests.benchmarks.faults` measures all the rows, and says how long the gaps between commits were.
"""

import pytest

from tests.benchmarks import faults

pytestmark = pytest.mark.check
SECONDS = 15.0  # longer than a host's claim


def test_a_run_survives_what_hangs_or_dies() -> None:
    rows = faults.measure(["stop host", "stop relay", "stop redis", "kill other site"], SECONDS)["rows"]
    assert [(row["lost"], row["doubled"], row["divergent"]) for row in rows] == [(0, 0, 0)] * 4
    assert all(row["steps"] > 0 for row in rows)
