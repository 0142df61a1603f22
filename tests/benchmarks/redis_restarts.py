"""Time until a run on PostgreSQL continues after its Redis is killed and restarted. Described in README.md."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.rig.figures import Figures, median, publish

PROGRAM = Path(__file__).parent / "rig" / "restarts.py"


def measure(restarts: int) -> Figures:
    """Return the median and longest seconds from Redis's first answer to the run's next step."""
    command = [sys.executable, "-m", "pytest", "-q", str(PROGRAM)]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "seconds.json"
        environment = {**os.environ, "RESTARTS": str(restarts), "FIGURES": str(written)}
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        took = json.loads(written.read_text())
    return {"restarts": restarts, "goes_on_s": median(took), "longest_s": max(took)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.redis_restarts", description=__doc__)
    parser.add_argument("--restarts", type=int, default=12)
    wanted = parser.parse_args(arguments)
    return publish("redis_restarts", lambda: measure(wanted.restarts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
