"""Run all the benchmarks of one size, each within its time budget: `python -m tests.benchmarks [--quick | --full]`.
See README.md.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.rig.figures import say
from tests.benchmarks.suite.runner import lines_of
from tests.benchmarks.suite.sizes import JOBS, MINUTES, Job, Size
from tests.emulation.kernel.interruptions import ended_by_signals
from tests.emulation.network import ROOT

FIGURES = ROOT / "var" / "benchmarks"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks, print a line of JSON for each, and save the lines. Return 1 if any of them failed or took
    too long.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="size", action="store_const", const="quick", help="ten minutes")
    sizes.add_argument("--full", dest="size", action="store_const", const="full", help="three hours")
    size: Size = parser.parse_args(arguments).size or "usual"
    say(f"at most {MINUTES[size]} minutes: {', '.join(job.name for job in JOBS[size])}")
    FIGURES.mkdir(parents=True, exist_ok=True)
    with ended_by_signals():
        failed = list(published(JOBS[size], FIGURES / f"{size}.jsonl"))
    say(f"figures are in {(FIGURES / f'{size}.jsonl').relative_to(ROOT)}")
    say(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


def published(jobs: Sequence[Job], file: Path) -> Iterator[str]:
    """Run the jobs, print and save their lines, and yield the name of each job that did not finish."""
    with file.open("w") as kept:
        for job in jobs:
            say(f"{job.name}, at most {job.budget_s} s")
            lines, is_done = lines_of(job)
            for line in lines:
                print(line, flush=True)
                print(line, file=kept, flush=True)
            if not is_done:
                yield job.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
