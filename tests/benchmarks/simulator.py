"""Whole runs of virtual peers under all conditions, at sizes too large for tests. Described in README.md."""

import argparse
import sys
import time

from peer_agent.simulation.__main__ import command_of, setting_of
from peer_agent.simulation.churn import all_conditions
from peer_agent.simulation.simulate import Figures as Judged
from peer_agent.simulation.simulate import Simulation
from tests.benchmarks.rig.figures import Figures, publish, say

SIZES = ("200x200", "50x2000", "1000x100")  # trainers x rounds
RELAYS = 2


def measure(sizes: list[tuple[int, int]], churn: float, seed: int) -> Figures:
    """Run each size once. Return the figures that must be 0, and the cost."""
    runs = {}
    for peers, rounds in sizes:
        simulation = Simulation(
            setting_of(peers, rounds, seed, RELAYS), all_conditions(churn), cpu=time.process_time, wall=time.monotonic
        )
        began = time.process_time()
        simulation.run()
        figures = simulation.figures()
        if not figures.is_sound:
            say(f"not sound: {command_of(peers, rounds, churn, seed, RELAYS)}")
        runs[f"{peers}x{rounds}"] = _figures(figures, time.process_time() - began)
        say(f"{peers} x {rounds}: {runs[f'{peers}x{rounds}']}")
    return {"churn": churn, "seed": seed, "sound": all(run["sound"] for run in runs.values()), "runs": runs}


def _figures(judged: Judged, cpu_s: float) -> Figures:
    return {
        "sound": judged.is_sound,
        "committed_rounds": judged.committed_rounds,
        "void_rounds": judged.void_rounds,
        "stuck_rounds": judged.stuck_rounds,
        "divergent_replicas": judged.divergent_replicas,
        "unsettled_leases": judged.unsettled_leases,
        "uncredited_samples": judged.uncredited_samples,
        "doubled_samples": judged.doubled_samples,
        "faults": sum(judged.faults.values()),
        "virtual_s": judged.virtual_seconds,
        "events": judged.events,
        "cpu_s": cpu_s,
        "advance_cpu_s": judged.advance_cpu_s,
        "events_per_s": judged.events / judged.advance_cpu_s,
        "rest_us_per_event": 1e6 * (cpu_s - judged.advance_cpu_s) / judged.events,
    }


def _size(text: str) -> tuple[int, int]:
    peers, rounds = text.split("x")
    return int(peers), int(rounds)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.simulator", description=__doc__)
    parser.add_argument("--sizes", type=_size, nargs="+", default=[_size(size) for size in SIZES])
    parser.add_argument("--churn", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args(arguments)
    return publish("simulator", lambda: measure(wanted.sizes, wanted.churn, wanted.seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
