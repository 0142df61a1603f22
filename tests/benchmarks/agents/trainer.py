"""An agent without a model: `python -m tests.benchmarks.agents.trainer FOLDER PEER CONTROL --sample-s SECONDS`.

The messages, gradient sums and carried work are those of the shipped agent. A timer replaces the computation, every
token's gradient is the same noise, and the averages change no parameters.
"""

import argparse
import asyncio
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec import Struct

from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.memory import MEMORY
from peer_agent.display.lines import View
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import RecordHead, Unit
from peer_agent.protocol.recipe import Recipe
from peer_agent.protocol.trainer import events as e
from peer_agent.recipes import parse_recipe
from peer_agent.relay.place import Place
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.jobs import Accumulation, Follower, Jobs
from peer_agent.training.units import Computed, Taken
from tests.benchmarks.agents.held import Held, places_in, save_average, save_held, tokens_at
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent
from tests.benchmarks.rig.tally import count_into

NATS = 2.5  # loss per token
LOG = "agent.log"
LOOK_S = 0.1
LINKED_S = 20.0  # longest wait for links to all listening peers
EARLY_STEPS = 3  # first steps of a run, slowed down so that idle links can be probed


class Pace(Struct, frozen=True):
    """Seconds per sample, extra seconds per sample in a run's first steps, and the delay before each further unit of a
    step.
    """

    sample_s: float
    early_s: float = 0.0
    late_s: float = 0.0


class NoModel:
    """A stand-in for a replica. The digest identifies the averages of all updates applied so far."""

    def __init__(self, folder: Path, elements: int) -> None:
        self.folder, self.places = folder, places_in(elements)
        self.begin()

    def begin(self) -> None:
        self.step, self._digest = 0, 0

    def apply(self, record: RecordHead, _: str, gradient: Floats) -> None:
        save_average(self.folder, record.step - 1, gradient[self.places])
        self.step, self._digest = record.step, zlib.crc32(repr(record.spans).encode(), self._digest)

    def digest(self) -> str:
        return f"{self._digest:016x}"


class Noise:
    """A stand-in for the trainer. Instead of computing gradients, it sleeps and adds noise."""

    at_once, compiled = 0, None

    def __init__(self, model: NoModel, recipe: Recipe, noise: Floats, pace: Pace) -> None:
        self.model, self.recipe, self.noise, self.pace = model, recipe, noise, pace
        self.units: tuple[m.DoneUnit, ...] = ()
        self.tokens = 0

    def begin(self, unit: Unit) -> "TimedUnit":
        return TimedUnit(self, unit)

    def compute(self, unit: Unit) -> Computed:
        base = self.model.step
        early_s = self.pace.early_s if base < EARLY_STEPS else 0.0
        time.sleep((self.pace.sample_s + early_s) * unit.samples)
        _, tokens = self.recipe.loss_units_in(unit.samples)
        return Computed((unit,), base, NATS * tokens, (tokens,))

    def keep(self, done: Computed) -> None:
        self.units = (*self.units, m.DoneUnit(done.units[0], done.base_step))
        self.tokens += sum(done.loss_tokens)

    def take_sum(self) -> Taken:
        array = MEMORY.array(np.float32, self.noise.size)
        gradient = np.multiply(self.noise, np.float32(self.tokens), out=array)
        taken = Taken(gradient, self.tokens, NATS * self.tokens, self.units)
        self.discard()
        return taken

    def discard(self) -> None:
        self.units, self.tokens = (), 0


class TimedUnit:
    def __init__(self, noise: Noise, unit: Unit) -> None:
        self.noise, self.unit = noise, unit

    def backward(self) -> None:
        self.computed = self.noise.compute(self.unit)

    def finish(self) -> Computed:
        return self.computed


class Linked(Follower):
    """A follower that loads no snapshot. It reports the snapshot as loaded once its links to all listening peers are
    open.
    """

    model: NoModel
    listeners: frozenset[PeerId] = frozenset()

    async def load(self, snapshot: m.Snapshot) -> str:
        """Wait until the links to all listeners are open. Give up after LINKED_S seconds, because a listener may have
        left.
        """
        until = time.monotonic() + LINKED_S
        while not self.listeners <= self.links.open.keys() and time.monotonic() < until:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(LOOK_S)
        self.model.begin()
        return snapshot.state_digest


class Watched(Accumulation):
    """An accumulation that saves a sample of its sums at each cut, and delays every unit of a step after the first.

    The delay lets every trainer contribute a first unit to each round. If a trainer is away, further units from the
    other trainers still fill the batch.
    """

    folder: Path
    model: NoModel
    late_s = 0.0
    worked_at = -1

    async def compute(self, action: e.Compute, is_wanted: Callable[[int], bool]) -> e.Computed | e.NotFinite | None:
        """Compute as the agent does. Any delay comes before the unit starts, because an update waits for a unit in
        progress.
        """
        if self.late_s and self.worked_at == self.model.step:
            until = time.monotonic() + self.late_s
            while is_wanted(action.job) and time.monotonic() < until:  # noqa: ASYNC110 (nobody is told)
                await asyncio.sleep(LOOK_S)
        found = await super().compute(action, is_wanted)
        if isinstance(found, e.Computed):
            self.worked_at = found.base
        return found

    def freeze(self, action: e.Freeze) -> Sending | None:
        sending = super().freeze(action)
        places = self.model.places
        tokens = tokens_at(action.weights, places // self.grid.chunk_elements)
        save_held(self.folder, action.cut.step, Held(self.accumulator._sum[places], tokens))
        return sending


class TimedJobs(Jobs):
    pace = Pace(0.0)

    async def become_replica(self, greeting: m.Greeting) -> tuple[Follower, Accumulation]:
        """Create the follower and the accumulation with a timer and noise in place of a model."""
        agent, elements = self.agent, greeting.elements
        folder, me = agent.home.folder, agent.access.peer
        model = NoModel(folder, elements)
        noise = np.random.default_rng(int(me, 16)).standard_normal(elements, dtype=np.float32)
        follower = Linked(agent.home, agent.access, agent.links, cast("Any", model))
        follower.model = model
        follower.listeners = frozenset(listener.peer for listener in greeting.listeners) - {me}
        gradients: Any = Noise(model, parse_recipe(greeting.recipe), noise, self.pace)
        accumulation = Watched(gradients, grid_of(elements), follower.busy)
        accumulation.folder, accumulation.model, accumulation.late_s = folder, model, self.pace.late_s
        return follower, accumulation


async def train(access: RunAccess, pace: Pace, place: Place | None, reserve_percent: int) -> None:
    """Train until the process ends. Human-readable output goes to a file in the folder."""
    with (access.home.folder / LOG).open("w") as words:
        owner = MachineControl(access.home, Limits(threads=1, reserve_percent=reserve_percent))
        agent = Agent(access.home, access, owner, View(words), place)
        agent.jobs = jobs = TimedJobs(agent)
        jobs.pace = pace
        await agent.run()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.agents.trainer", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("peer", type=PeerId)
    parser.add_argument("control", help="where the coordinator is")
    parser.add_argument("--sample-s", type=float, required=True, help="in which it computes a sample")
    parser.add_argument("--early-s", type=float, default=0.0, help="by which that is longer in the first steps")
    parser.add_argument("--late-s", type=float, default=0.0, help="by which a further unit of a step comes later")
    parser.add_argument("--address", help="where others can dial it")
    parser.add_argument("--reserve", type=int, default=0, help="percent of its uplink that its household keeps")
    parser.add_argument("--torch", action="store_true", help="load it, as whoever computes has")
    asked = parser.parse_args(arguments)
    leave_with_parent()
    count_into(asked.folder)
    if asked.torch:
        import torch

        torch.set_num_threads(1)
    access = OwnAccess(asked.folder, asked.peer, Role.TRAINER, asked.control)
    place = Place(asked.address) if asked.address else None
    asyncio.run(train(access, Pace(asked.sample_s, asked.early_s, asked.late_s), place, asked.reserve))


if __name__ == "__main__":
    main(sys.argv[1:])
