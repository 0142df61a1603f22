"""A step's stated bytes and seconds, compared with rounds over links of the stated speed. Described in README.md.

The peers are a relay and homes behind NAT. The homes' links are symmetric, with the default share kept for the
household. Agents without a model (`agents/trainer.py`) average as many elements as the preset has.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from peer_agent.machine.limits import RESERVE_PERCENT
from peer_agent.protocol.recipe import Recipe
from tests.benchmarks.agents.trainer import Pace
from tests.benchmarks.averaging import Made, figures_of, rounds_of
from tests.benchmarks.experiments.presets import presets
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.swarm import EARLY_S, FURTHER, SAMPLES, UNIT_S, Way, trainers_of
from tests.benchmarks.rivals.place import Place
from tests.emulation.calibration import calibrated
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.setups import Setup, peers

UPLINKS = (10, 30, 100)  # Mb/s, as offered in the form
HOMES = 3
RELAY_MBIT = 2000
ROUNDS = 2
LONGEST_S = 30.0  # rounds stated to be longer than this are left out


def homes(elements: int, mbit: int) -> Setup:
    """Return a set-up with so few homes that this machine's CPU has idle time even with the fastest links."""
    everyone = (
        *peers("home", (HOMES, mbit, mbit), reachable=False),
        *peers("relay", (1, RELAY_MBIT, RELAY_MBIT), role="relay"),
    )
    return Setup(f"homes at {mbit} Mb/s", everyone, elements, "relay-1", 1.0)


def way(recipe: Recipe, setup: Setup) -> Way:
    """Return the recipe with a batch of one unit per trainer. Everything else is as in the preset."""
    trainers = len(trainers_of(setup))
    few = replace(
        recipe,
        target_batch=SAMPLES * trainers,
        micro_batch=SAMPLES,
        minimum_trainers=trainers,
        snapshot_every=100_000,
    )
    pace = Pace(UNIT_S / SAMPLES, EARLY_S / SAMPLES, (FURTHER - 1) * UNIT_S + EARLY_S)
    return Way(few, pace, RESERVE_PERCENT)


def measured(name: str, recipe: Recipe, mbit: int) -> Figures:
    """Measure one preset over one kind of link. The stated figures come from the form's own estimate."""
    from web.pages.runs.forms.recipe import estimate_of

    told = estimate_of(recipe)
    setup = homes(recipe.parameters(), mbit)
    with emulated(setup) as network, tempfile.TemporaryDirectory() as folder:
        place = Place(network, Path(folder), calibrated(network), recipe.codec_up, ROUNDS)
        run = rounds_of(place, setup, way(recipe, setup), is_many=True)  # probe no idle links
    figures = figures_of(run)
    up, down = (median(_homes(run, figures[f"per_peer_{side}_bytes"])) for side in ("up", "down"))
    seconds = figures["round_s_median"]
    return {
        "preset": name,
        "uplink_mbit": mbit,
        "up_told_mb": told.up / 1e6,
        "up_told_ratio": told.up / up,
        "down_told_mb": told.down / 1e6,
        "down_told_ratio": told.down / down,
        "round_told_s": told.seconds[mbit],
        "round_s": seconds,
        "round_told_ratio": told.seconds[mbit] / seconds,
        **{field: figures[field] for field in ("rounds_s", "rounds_ok", "rounds_void", "cpu_busy", "is_valid")},
    }


def _homes(run: Made, moved: dict[str, float]) -> Iterable[float]:
    return [moved[name] for name in trainers_of(run.setup)]


def begin_site() -> None:
    """Set up Django, because the figures come from the site's own estimate."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()


def measure(names: list[str], uplinks: list[int]) -> list[Figures]:
    if reason := reason_against():
        return [{"left_out": reason}]
    begin_site()
    from web.pages.runs.forms.recipe import estimate_of

    found = presets()
    lines = []
    for name in names or found:
        for mbit in uplinks or UPLINKS:
            if estimate_of(found[name]).seconds[mbit] <= LONGEST_S:
                say(f"{name} at {mbit} Mb/s")
                lines.append(measured(name, found[name], mbit))
                say(str(lines[-1]))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experiments.steps", description=__doc__)
    parser.add_argument("--preset", action="append", default=[], help="all; may be given several times")
    parser.add_argument("--uplink", action="append", default=[], type=int, choices=UPLINKS, help="Mb/s; all")
    given = parser.parse_args()
    return publish("steps", lambda: measure(given.preset, given.uplink))


if __name__ == "__main__":
    sys.exit(main())
