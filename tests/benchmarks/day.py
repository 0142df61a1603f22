"""A site that has been up for a day opens a new run and continues an old one. Described in README.md.

libfaketime advances the clocks of the site, relay and agents while they run. Without it, nothing is measured.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from demo.recipes import python_text
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.end_to_end.rig.swarm import Swarm

HOURS = 25
STEPS = 3  # steps after which a run counts as working
LIMIT_S = 120.0
LIBRARIES = "/usr/lib/*/faketime/libfaketimeMT.so.1"  # the library's path in Debian and Ubuntu
SITE = "tests/benchmarks/rig/day_site.py"


class Clock:
    """An adjustable clock for processes that are started with its `environment`."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._file = folder / "time"
        self.move(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
        }

    def move(self, hours: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"+{hours}h\n")
        new.replace(self._file)


def measured(folder: Path, library: Path) -> Figures:
    """Advance the clock. Return the seconds that the old run and a new run each take to complete three steps."""
    clock = Clock(folder, library)
    with Swarm(folder / "swarm", clock.environment) as swarm:
        swarm.start_site(program=SITE)
        organizer, text = swarm.sign_up("organizer"), python_text()[:150_000]
        swarm.open_run(organizer, text, trainers=1, steps=100_000)
        old = swarm.slug
        swarm.start_agent("old", token=swarm.token_of(organizer), **clock.environment)  # type: ignore[arg-type]
        swarm.wait_for_step(STEPS)
        say(f"{old} is at step {swarm.facts()['step']}; the clock is moved by {HOURS} hours")
        before = int(swarm.facts()["step"])
        clock.move(HOURS)
        began = time.monotonic()
        swarm.wait_for_step(before + STEPS, LIMIT_S)
        goes_on_s = time.monotonic() - began
        began = time.monotonic()
        swarm.open_run(organizer, text, trainers=1, steps=100_000)
        opened_s = time.monotonic() - began
        swarm.start_agent("new", token=swarm.token_of(organizer), **clock.environment)  # type: ignore[arg-type]
        swarm.wait_for_step(STEPS, LIMIT_S)
        return {
            "hours": HOURS,
            "old_run_goes_on_s": round(goes_on_s, 2),
            "new_run_opens_s": round(opened_s, 2),
            "new_run_makes_steps_s": round(time.monotonic() - began - opened_s, 2),
            "relays_of_new_run": len(swarm.online("relay")),
            "alive": [name for name, process in swarm.processes.items() if process.poll() is None],
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.day", description=__doc__)
    parser.add_argument("--library", type=Path, help=f"libfaketimeMT.so.1; by default {LIBRARIES}")
    library = parser.parse_args(arguments).library or next(Path("/").glob(LIBRARIES[1:]), None)
    if library is None:
        say("day: left out, libfaketime is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return publish("day", lambda: measured(Path(folder), library))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
