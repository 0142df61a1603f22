"""Events per second that the coordinator's `advance` handles with virtual peers, and the growth of its cost. Described
in README.md.
"""

import argparse
import gc
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from peer_agent.protocol.coordinator import events as e
from peer_agent.simulation.churn import Conditions, inject
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting, World
from tests.benchmarks.rig.figures import Figures, median, publish, say

LIMIT_S = 3600.0  # virtual seconds


class Stopwatch:
    """CPU time spent in `advance`, by kind of event. Other work on this machine does not count."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.events: defaultdict[str, int] = defaultdict(int)
        self._began = 0.0

    def before(self, host: Host, event: e.Event, now: float) -> None:
        self._began = time.thread_time()

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        seconds = time.thread_time() - self._began
        name = type(event.message if isinstance(event, e.Received) else event).__name__
        self.seconds[name] += seconds
        self.events[name] += 1

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        pass


class Timed:
    def __init__(self, peers: int, steps: int, conditions: Conditions | None) -> None:
        self.watch = Stopwatch()
        world = World(Setting(trainers=peers, relays=2, steps=steps, seed=1), [self.watch])
        if conditions is not None:
            inject(world, conditions)
        gc.collect()
        # Hide the virtual peers from the garbage collector: a real host does not have a thousand trainers in its heap.
        gc.freeze()
        try:
            assert world.run(lambda: world.database.step >= steps, LIMIT_S), "the run did not reach its last step"
        finally:
            gc.unfreeze()
        self.virtual_s = world.clock.now
        self.events = sum(self.watch.events.values())
        self.advance_s = sum(self.watch.seconds.values())
        self.steps = steps


def measure(sizes: Sequence[int], steps: int, repeats: int) -> Figures:
    conditions = {"calm": None, "churn": Conditions()}
    runs: defaultdict[tuple[str, int], list[Timed]] = defaultdict(list)
    for turn in range(repeats):
        for name, each in conditions.items():
            for peers in sizes:
                runs[name, peers].append(Timed(peers, steps, each))
        say(f"turn {turn + 1} of {repeats}")
    figures: Figures = {"steps": steps, "repeats": repeats}
    for name in conditions:
        figures[name] = {str(peers): _figures(runs[name, peers]) for peers in sizes}
        figures[name]["growth"] = _growth(runs[name, sizes[0]], runs[name, sizes[-1]])
        costs = [figures[name][str(peers)]["us_per_event"] for peers in sizes]
        figures[name]["cost_ratio"] = max(costs) / min(costs)  # highest cost divided by the lowest, with ticks included
    return figures


def _figures(runs: Sequence[Timed]) -> Figures:
    first = runs[0]
    kinds = sorted(first.watch.seconds, key=lambda kind: -first.watch.seconds[kind])
    return {
        "events": first.events,
        "events_per_s": median(run.events / run.advance_s for run in runs),
        "us_per_event": median(1e6 * run.advance_s / run.events for run in runs),
        "ms_per_step": median(1e3 * run.advance_s / run.steps for run in runs),
        "share_of_one_core": median(run.advance_s / run.virtual_s for run in runs),
        "us_by_kind": {
            kind: median(1e6 * run.watch.seconds[kind] / run.watch.events[kind] for run in runs) for kind in kinds[:8]
        },
        "share_by_kind": {kind: median(run.watch.seconds[kind] / run.advance_s for run in runs) for kind in kinds[:8]},
        "mix": {kind: first.watch.events[kind] / first.events for kind in kinds},
    }


def _growth(few: Sequence[Timed], many: Sequence[Timed]) -> Figures:
    """Return the factor by which each figure grows from the smallest to the largest number of peers (median over
    turns).
    """
    pairs = list(zip(few, many, strict=True))
    return {
        "us_per_event": median(b.advance_s / b.events * a.events / a.advance_s for a, b in pairs),
        "ms_per_step": median(b.advance_s / a.advance_s for a, b in pairs),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.coordinator", description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    wanted = parser.parse_args(arguments)
    return publish("coordinator", lambda: measure(wanted.peers, wanted.steps, wanted.repeats))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
