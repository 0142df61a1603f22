"""Averages by byzfl 0.0.11, a library of robust aggregation rules, for the comparison in `test_aggregates`.

byzfl would bring torchvision, matplotlib and seaborn, so its results are stored in `tests/golden/byzfl.json`. After
`pip install byzfl`, `python -m tests.averaging.byzfl_values` writes them again.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

STORED = Path(__file__).parents[1] / "golden" / "byzfl.json"
CASES, SLOTS, SIZE = 5, 8, 12
RADIUS, STEPS, LONG = 2.0, 8, 500

GOLDEN: dict[str, dict[int, list[float]]] = {
    rule: {int(case): values for case, values in cases.items()}
    for rule, cases in json.loads(STORED.read_text() if STORED.exists() else "{}").items()
}


def slots_of(case: int) -> NDArray[np.float64]:
    """Return eight vectors. As many as the case's number, up to three, are far from the others."""
    values = np.random.Generator(np.random.Philox(case)).normal(0.5, 1.0, (SLOTS, SIZE))
    values[: min(case, 3)] *= -4.0 - case
    return values


def main() -> None:
    from byzfl.aggregators.aggregators import CenteredClipping, GeometricMedian

    made: dict[str, dict[int, list[float]]] = {"geometric median": {}, "centered clip": {}}
    for case in range(CASES):
        made["geometric median"][case] = GeometricMedian(nu=1e-9, T=LONG)(slots_of(case)).tolist()
        made["centered clip"][case] = CenteredClipping(L=STEPS, tau=RADIUS)(slots_of(case)).tolist()
    STORED.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
