"""Growth of memory with rounds: a process's peak, and its rise from early to late rounds."""

from collections.abc import Sequence

from tests.benchmarks.rig.figures import Figures, median

SETTLED = 0.2  # the share of samples before which a process still starts up
ALLOWED_VECTORS, ALLOWED_MB = 3, 200.0  # the allowance for averaging without torch


def allowed_mb(elements: int) -> float:
    """Return three vectors in float32 plus 200 MB."""
    return ALLOWED_VECTORS * 4 * elements / 1e6 + ALLOWED_MB


def growth_mb(looks: Sequence[float]) -> float:
    """Return the rise from the first quarter after start-up to the last, by medians."""
    settled = looks[int(SETTLED * len(looks)) :]
    quarter = max(1, len(settled) // 4)
    return median(settled[-quarter:]) - median(settled[:quarter])


def memory_of(looks: Sequence[float], peak_mb: float, rounds: int) -> Figures:
    """Return the figures of one process, sampled evenly over the rounds."""
    grown = growth_mb(looks)
    between = (1 - SETTLED) * 0.75 * rounds  # from the middle of one quarter to that of the other
    return {"peak_mb": peak_mb, "grown_mb": grown, "mb_per_100_rounds": 100 * grown / between}
