"""Time until a run on PostgreSQL continues after its Redis is killed and restarted, and the longest gap between steps
while Redis hangs or is down. Described in README.md."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.rig.figures import Figures, median, publish

PROGRAM = Path(__file__).parent / "rig" / "restarts.py"


def measure(restarts: int, seconds: float) -> Figures:
    """Return the median and longest seconds from Redis's first answer to the run's next step, and the longest gaps
    between commits around a fault of `seconds`.
    """
    command = [sys.executable, "-m", "pytest", "-q", str(PROGRAM)]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "seconds.json"
        environment = {**os.environ, "RESTARTS": str(restarts), "SECONDS": str(seconds), "FIGURES": str(written)}
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        found = json.loads(written.read_text())
    took = found.pop("took")
    return {"restarts": restarts, "goes_on_s": median(took), "longest_s": max(took), "fault_s": seconds, **found}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.redis_restarts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long Redis hangs, and then is down")
    wanted = parser.parse_args(arguments)
    return publish("redis_restarts", lambda: measure(wanted.restarts, wanted.seconds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
