"""Simulate a run of virtual peers with injected faults, and judge it. After a failure, print how to repeat the run."""

import argparse
import sys
import time
import traceback

import msgspec

from peer_agent.simulation.churn import all_conditions
from peer_agent.simulation.simulate import Figures, Simulation
from peer_agent.simulation.world import Setting

SAMPLES_PER_S = 1.0  # of a typical trainer; rounds then take about ten seconds, which suits a run's deadlines
SHARD = 40_000  # samples in a shard


def setting_of(peers: int, rounds: int, seed: int, relays: int) -> Setting:
    """Return settings with realistic proportions: about ten seconds per update, a few seconds per unit."""
    return Setting(
        trainers=peers,
        relays=relays,
        steps=rounds,
        seed=seed,
        samples_per_s=SAMPLES_PER_S,
        shards=(SHARD, SHARD // 4 + 1, 90),
        non_finite=0.001,
    )


def command_of(peers: int, rounds: int, churn: float, seed: int, relays: int) -> str:
    """Return the command that repeats a simulation."""
    world = f"--peers {peers} --rounds {rounds} --churn {churn:g} --seed {seed} --relays {relays}"
    return f"python -m peer_agent.simulation {world} --json"


def judged(peers: int, rounds: int, churn: float, seed: int, relays: int) -> Figures:
    """Simulate and judge a run.

    If the simulation raises an exception, print its traceback, and name it in the figures.
    """
    setting = setting_of(peers, rounds, seed, relays)
    simulation = Simulation(setting, all_conditions(churn), cpu=time.process_time, wall=time.monotonic)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 (the figures up to any exception are the result)
        traceback.print_exc()
        simulation.crash = f"{type(error).__name__}: {error}"
    return simulation.figures()


def report(figures: Figures, command: str, *, json: bool) -> int:
    """Print the figures. If the run failed, also print the command that repeats it. Return the exit status."""
    if not figures.is_sound:
        print(f"Seed {figures.seed} failed; replay it with\n  {command}", file=sys.stderr)
        for reason in figures.reasons:
            print(f"  {reason}", file=sys.stderr)
    if json:
        print(msgspec.json.encode(figures).decode())
    else:
        for name, value in msgspec.structs.asdict(figures).items():
            print(f"{name.replace('_', ' '):20} {value}")
    return 0 if figures.is_sound else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m peer_agent.simulation", description=__doc__)
    parser.add_argument("--peers", type=int, default=50, help="trainers")
    parser.add_argument("--rounds", type=int, default=100, help="updates to make")
    parser.add_argument("--churn", type=float, default=1.0, help="how many faults are injected; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same run")
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="figures for programs")
    given = parser.parse_args()
    world = (given.peers, given.rounds, given.churn, given.seed, given.relays)
    return report(judged(*world), command_of(*world), json=given.json)


if __name__ == "__main__":
    sys.exit(main())
