"""`python -m peer_agent.simulation --peers 50 --steps 100 --seed 1 [--json]`."""

import argparse
import sys

import msgspec

from peer_agent.simulation.churn import Weather
from peer_agent.simulation.picture import simulate
from peer_agent.simulation.world import Setting


def main(arguments: list[str]) -> int:
    """Simulate a run and print what came of it. Status 1 where it did not reach its last step."""
    parser = argparse.ArgumentParser(
        prog="manyhands simulate", description="A run of virtual peers on a virtual clock."
    )
    parser.add_argument("--peers", type=int, default=50, help="trainers")
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="nothing dies, sleeps or freezes")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    setting = Setting(trainers=wanted.peers, relays=wanted.relays, steps=wanted.steps, seed=wanted.seed)
    picture = simulate(setting, None if wanted.calm else Weather())
    if wanted.json:
        print(msgspec.json.encode(picture).decode())
    else:
        for name, value in msgspec.structs.asdict(picture).items():
            print(f"{name.replace('_', ' '):16} {value}")
    return 0 if picture.steps == wanted.steps else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
