"""Rounds during which trainers compute the next step, with and without the slowest trainers, and with auxiliaries. See
README.md."""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace as copy_of
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from peer_agent.protocol.identifiers import PeerId
from tests.benchmarks.agents.trainer import Pace
from tests.benchmarks.averaging import Made, absent_from, rounds_of, sized
from tests.benchmarks.rig.coordinator import Timed
from tests.benchmarks.rig.figures import Figures, median, publish, say
from tests.benchmarks.rig.swarm import SAMPLES, STATED, Way, trainers_of, way_of
from tests.benchmarks.rivals.environment import Unavailable
from tests.benchmarks.rivals.place import Place
from tests.emulation.calibration import calibrated
from tests.emulation.counters import MOST_BUSY, cpu_busy
from tests.emulation.kernel.commands import reason_against
from tests.emulation.namespaces import emulated
from tests.emulation.setups import SETUPS, Setup, setup

ALBERT = ("albert", "albert-auxiliaries")
OF_FLOOR = 0.7  # a trainer computes its share of a batch in this fraction of the floor time of a round
LATER = 10  # rounds after which a trainer that was left out should have caught up
Contributors = Literal["all", "fast"]


def way(found: Setup, floor_s: float, contributors: Contributors) -> Way:
    """Return settings in which computing overlaps the exchange. The batch is the same for any number of trainers."""
    free = way_of(found, "plan")
    recipe = replace(free.recipe, staleness=1, contributors=contributors)
    return Way(recipe, Pace(OF_FLOOR * floor_s / SAMPLES), stays=LATER)


def faster(found: Setup) -> Setup:
    slowest = min(peer.up_mbit for peer in found.peers if peer.role == "trainer")
    kept = [peer for peer in found.peers if peer.role != "trainer" or peer.up_mbit > slowest]
    return copy_of(found, peers=tuple(kept))


def measure(found: Setup, rounds: int, contributors: Contributors) -> Figures:
    """Measure all trainers, then only the faster ones, over the same links and with the same batches."""
    with emulated(found) as network, tempfile.TemporaryDirectory() as folder:
        place = Place(network, Path(folder), calibrated(network), STATED, rounds)
        as_all = way(found, place.floor_s, contributors)
        figures: Figures = {
            "setup": found.name,
            "scale": found.scale,
            "parameters": found.elements,
            "contributors": contributors,
            "fp16_floor_s": place.floor_s,
            "batch_s": OF_FLOOR * place.floor_s,
        }
        for name, those in (("everybody", found), ("faster", faster(found))):
            trainers = len(trainers_of(those))
            recipe = replace(as_all.recipe, minimum_trainers=trainers)
            say(f"{found.name}: {name}, {trainers} trainers")
            try:
                figures[name] = figures_of(rounds_of(place, those, replace(as_all, recipe=recipe)))
            except (TimeoutError, Unavailable) as trouble:
                return figures | {"left_out": str(trouble) or f"{name}: no {rounds} rounds in {place.patience_s:.0f} s"}
        ratio = figures["everybody"]["samples_per_s"] / figures["faster"]["samples_per_s"]
        return figures | {"ratio": ratio}


def figures_of(run: Made) -> Figures:
    names = {peer: name for name, peer in run.peers.items()}
    coordinator, counted = run.coordinator, run.counted
    trainers = {run.peers[name] for name in trainers_of(run.setup)}
    absent = {step: absent_from(coordinator, trainers, step) for step in counted}
    is_short = [step for step, peers in absent.items() if peers]
    busy = cpu_busy(run.before.kernel.busy, run.after.kernel.busy)
    return {
        "samples_per_s": samples_per_s(run),
        "round_s_median": median(timed.round_s for timed in counted.values()),
        "rounds_s": [timed.round_s for timed in counted.values()],
        "planned_s": median(timed.planned_s for timed in counted.values()),
        "codecs_up": sorted({codec for timed in counted.values() for codec in timed.codecs.values()}),
        "codecs_down": sorted({timed.codec_down for timed in counted.values()}),
        "rounds_void": run.after.voids - run.before.voids,
        "sat_out": {str(step): sorted(names[peer] for peer in timed.left_out) for step, timed in counted.items()},
        "absent": {str(step): sorted(names[peer] for peer in peers) for step, peers in absent.items()},
        "round_s_with_all": _median([counted[step].round_s for step in counted if step not in is_short]),
        "round_s_without_some": _median([counted[step].round_s for step in is_short]),
        "behind": {names[peer]: steps for peer, steps in sorted(last_of(counted).behind.items())},
        "behind_later": behind_later(coordinator.steps, absent, names),
        "error_rms": _median(list(run.errors.values())),
        "notes": [note for note in coordinator.notes if not note.startswith(("step", "joined", "left"))][-8:],
        "cpu_busy": busy,
        "is_valid": busy <= MOST_BUSY,
    }


def samples_per_s(run: Made) -> float:
    """Return committed samples per second, from the commit before the first counted round to the last counted
    commit."""
    steps = sorted(run.counted)
    began = run.coordinator.steps[steps[0] - 1].committed_at
    samples = sum(run.record(step).samples for step in steps)
    return samples / (run.counted[steps[-1]].committed_at - began)


def last_of(steps: Mapping[int, Timed]) -> Timed:
    return steps[max(steps)]


def behind_later(
    steps: Mapping[int, Timed], absent: Mapping[int, set[PeerId]], names: Mapping[PeerId, str]
) -> dict[str, int]:
    """Return the largest number of steps each left-out trainer was behind, ten rounds after being left out."""
    later: dict[str, int] = {}
    for step, peers in absent.items():
        for peer in peers if step + LATER in steps else ():
            behind = steps[step + LATER].behind.get(peer)
            if behind is not None:
                later[names[peer]] = max(later.get(names[peer], 0), behind)
    return later


def _median(values: list[float]) -> float | None:
    return median(values) if values else None


def _measured(found: Setup, rounds: int, contributors: Contributors) -> Figures:
    if reason := reason_against():
        return {"setup": found.name, "left_out": reason}
    return measure(found, rounds, contributors)


def main(arguments: Sequence[str]) -> int:
    wanted = parser().parse_args(arguments)
    for name in wanted.setup or ALBERT:
        found = sized(setup(name, wanted.scale), wanted.elements)
        publish("overlap", partial(_measured, found, wanted.rounds, wanted.contributors))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.overlap", description=__doc__)
    parser.add_argument("--setup", choices=sorted(SETUPS), action="append", help="default: both of ALBERT")
    parser.add_argument("--scale", type=float, help="of all rates; default: the set-up's own")
    parser.add_argument("--elements", type=int, help="of the vector; default: the set-up's own")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--contributors", choices=("all", "fast"), default="all")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
