"""Memory growth over rounds: a process's peak, and its rise from early to late rounds."""

from collections.abc import Sequence

from tests.benchmarks.rig.figures import Figures, median

SETTLED = 0.2  # a process still starts up during this first share of the samples
ALLOWED_VECTORS, ALLOWED_MB = 3, 200.0  # memory allowed for averaging without torch


def allowed_mb(elements: int) -> float:
    return ALLOWED_VECTORS * 4 * elements / 1e6 + ALLOWED_MB


def growth_mb(looks: Sequence[float]) -> float:
    """Return how much the median rises from the first quarter after start-up to the last quarter."""
    settled = looks[int(SETTLED * len(looks)) :]
    quarter = max(1, len(settled) // 4)
    return median(settled[-quarter:]) - median(settled[:quarter])


def memory_of(looks: Sequence[float], peak_mb: float, rounds: int) -> Figures:
    """Return the memory figures of one process, from samples spread evenly over the rounds."""
    grown = growth_mb(looks)
    between = (1 - SETTLED) * 0.75 * rounds  # rounds from the middle of the first quarter to the middle of the last
    return {"peak_mb": peak_mb, "grown_mb": grown, "mb_per_100_rounds": 100 * grown / between}
