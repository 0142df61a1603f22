"""The memory of processes that average without torch, over many rounds. A third of the rounds fail. Described in
README.md.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes.causal_lm import CausalLM, Model
from tests.benchmarks.measures.growth import allowed_mb, memory_of
from tests.benchmarks.rig.coordinator import Coordinator
from tests.benchmarks.rig.figures import Figures, publish, say
from tests.benchmarks.rig.processes import Child, peak_mb, rss_mb, running

HERE = "tests.benchmarks"
HOST = "127.0.0.1"
TRAINERS = [PeerId(f"{number:032x}") for number in (1, 2, 3)]  # the first trainer listens and reduces beside the relay
RELAY = PeerId(f"{1 << 64:032x}")
SAMPLES = 4
PACE = "--sample-s", str(0.02 / SAMPLES), "--late-s", "0.1"
FAILS = 3  # one round in this many fails
TELL = 50
PATIENCE_S = 60.0  # seconds for one round


def recipe() -> Recipe:
    """Return a recipe whose batch is filled by three trainers, or by two if one is away. A round that loses one of the
    three is void.
    """
    return CausalLM(
        model=Model(context=257),
        target_batch=SAMPLES * len(TRAINERS),
        micro_batch=SAMPLES,
        minimum_trainers=len(TRAINERS) - 1,
        snapshot_every=100_000,
        codec_up="fp16",
        codec_down="fp16",
    )


@contextmanager
def everybody(folder: Path, control: str) -> Iterator[dict[str, Child]]:
    """Start a relay, a trainer that listens, and two trainers that are disconnected in turn. Yield them by role."""
    with contextlib.ExitStack() as stack:

        def start(program: str, peer: PeerId, *more: str) -> Child:
            return stack.enter_context(running("-m", f"{HERE}.{program}", str(folder / peer), peer, control, *more))

        yield {
            "relay": start("rig.relay", RELAY),
            "contributor that reduces": start("agents.trainer", TRAINERS[0], *PACE, "--address", HOST),
            "contributor": start("agents.trainer", TRAINERS[1], *PACE),
            "other contributor": start("agents.trainer", TRAINERS[2], *PACE),
        }


class Rounds:
    def __init__(self, coordinator: Coordinator, children: dict[str, Child], rounds: int) -> None:
        self.coordinator, self.children, self.rounds = coordinator, children, rounds
        self.looks: dict[str, list[float]] = {name: [] for name in children}
        self._failed = 0  # number of the last round in which a failure was caused

    async def make(self) -> None:
        """Run until `rounds` rounds have ended, either void or with an update."""
        while (ended := self._ended()) < self.rounds:
            async with asyncio.timeout(PATIENCE_S):
                await self.coordinator.change()
            self._fail()
            if self._ended() > ended:
                self._look()

    def _ended(self) -> int:
        return self.coordinator.state.step + self.coordinator.state.void_rounds

    def _look(self) -> None:
        for name, child in self.children.items():
            self.looks[name].append(rss_mb(child.pid))
        if self._ended() % TELL == 0:
            say(f"{self._ended()} rounds, {self.coordinator.state.void_rounds} void")

    def _fail(self) -> None:
        """Make the planned round void: disconnect contributors until too few are left, then let them return.

        If the reducer itself contributed the most, the round may still succeed. In that case, the next round fails
        instead.
        """
        state = self.coordinator.state
        round_ = state.round
        if state.phase is not Phase.REDUCE or round_ is None or round_.plan is None or round_.number == self._failed:
            return
        if FAILS * state.void_rounds >= self._ended():
            return
        self._failed = round_.number
        able = deque(slot.peer for slot in round_.slots if slot.peer != TRAINERS[0])
        able.rotate(state.void_rounds)
        while able and state.round is round_:
            self.coordinator.lose(able.popleft())


async def rounds_of(folder: Path, elements: int, rounds: int) -> Figures:
    coordinator = Coordinator(recipe(), elements)
    with everybody(folder, await coordinator.listen(HOST)) as children:
        made = Rounds(coordinator, children, rounds)
        await made.make()
        memory = {name: memory_of(made.looks[name], peak_mb(child.pid), rounds) for name, child in children.items()}
        await coordinator.close()
    return {
        "parameters": elements,
        "rounds": rounds,
        "rounds_void": coordinator.state.void_rounds,
        "digests_equal": all(len(set(said.values())) == 1 for said in coordinator.digests.values()),
        "allowed_mb": allowed_mb(elements),
        "memory": memory,
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.memory.averaging", description=__doc__)
    parser.add_argument("--elements", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=500)
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        made = rounds_of(Path(folder), wanted.elements, wanted.rounds)
        return publish("memory.averaging", lambda: asyncio.run(made))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
