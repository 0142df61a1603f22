"""Print a digest of everything that the coordinator says in each of ten simulated runs: `python -m
tests.simulation.traces [SEED ...]`.

A change that only moves code leaves all ten equal. They take a minute.
"""

import sys
from collections.abc import Sequence

from msgspec.structs import replace

from peer_agent.protocol.coordinator import events as e
from peer_agent.simulation import simulate
from peer_agent.simulation.__main__ import setting_of
from peer_agent.simulation.churn import all_conditions
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting

SEEDS = range(1, 11)


class Trace(simulate.Trace):
    """A digest that covers the contents of all commands, and not only their kinds."""

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        super().after(host, event, commands, now)
        self._hash.update(repr(commands).encode())


def setting(seed: int) -> Setting:
    """Return a run of 14 trainers and 2 relays.

    Every second one has staleness 1; every fifth one chooses contributors and codecs.
    """
    chosen = setting_of(14, 40, seed, 2)
    if seed % 2 == 0:
        chosen = replace(chosen, staleness=1)
    return replace(chosen, contributors="fast", codecs="plan", slow_links=2) if seed % 5 == 0 else chosen


def main() -> None:
    simulate.Trace = Trace  # type: ignore[misc]
    for seed in map(int, sys.argv[1:] or SEEDS):
        run = simulate.Simulation(setting(seed), all_conditions(1.0))
        run.run()
        print(seed, run.figures().trace)


if __name__ == "__main__":
    main()
