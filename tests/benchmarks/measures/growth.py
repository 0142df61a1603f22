"""Whether memory grows with rounds: the highest of a process, and how far it rises from early rounds to late ones."""

from collections.abc import Sequence

from tests.benchmarks.rig.figures import Figures, median

SETTLED = 0.2  # of all looks, before which a process still comes up
ALLOWED_VECTORS, ALLOWED_MB = 3, 200.0  # what averaging without torch may take


def allowed_mb(elements: int) -> float:
    """Three vectors in float32, and 200 MB."""
    return ALLOWED_VECTORS * 4 * elements / 1e6 + ALLOWED_MB


def growth_mb(looks: Sequence[float]) -> float:
    """From the first quarter after a process has come up to the last quarter, by their medians."""
    settled = looks[int(SETTLED * len(looks)) :]
    quarter = max(1, len(settled) // 4)
    return median(settled[-quarter:]) - median(settled[:quarter])


def memory_of(looks: Sequence[float], peak_mb: float, rounds: int) -> Figures:
    """Of one process, looked at evenly over so many rounds."""
    grown = growth_mb(looks)
    between = (1 - SETTLED) * 0.75 * rounds  # from the middle of one quarter to that of the other
    return {"peak_mb": peak_mb, "grown_mb": grown, "mb_per_100_rounds": 100 * grown / between}
