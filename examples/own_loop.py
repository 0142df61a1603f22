"""Train in a Manyhands run with your own training loop, and write statistics on each unit to a CSV file.

    python examples/own_loop.py RUN_URL --out units.csv

The loop computes gradients. The run turns the gradients of all its trainers into updates. Requires the package
`manyhands[train]`.
"""

import argparse
import csv
import logging
import sys
import time
from pathlib import Path

import torch

from peer_agent.collaboration import collaborate

COLUMNS = ("step", "samples", "loss", "gradient_norm", "seconds")


def gradient_norm(model: torch.nn.Module) -> float:
    """Return the norm of the gradient of a unit's summed loss, over all trained parameters."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def train(run_url: str, out: Path, most: int | None) -> int:
    """Train until the run has finished or `most` units have been computed. Return the number of units computed."""
    computed = 0
    with out.open("w", newline="") as file, collaborate(run_url) as collaboration:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for unit in collaboration.units():
            began = time.monotonic()
            loss = unit.summed_loss()
            loss.backward()  # type: ignore[no-untyped-call]
            seconds, mean = time.monotonic() - began, float(loss.detach()) / unit.loss_units
            rows.writerow([unit.base_step, unit.unit.samples, mean, gradient_norm(unit.model), seconds])
            file.flush()
            collaboration.step()
            computed += 1
            if computed == most:
                break
    return computed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_url", help="the address of the run's page")
    parser.add_argument("--out", type=Path, default=Path("units.csv"), help="a table with a line for each unit")
    parser.add_argument("--units", type=int, help="leave after so many; default: stay until the run is finished")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    computed = train(given.run_url, given.out, given.units)
    print(f"{computed} units are in {given.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
