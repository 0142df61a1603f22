"""`python -m tests.benchmarks.agents.trainer FOLDER PEER CONTROL SECONDS [ADDRESS]`: the agent without a model.

All that it says, sends, holds and carries over is the agent's own. A sample is computed by a timer, its gradient is
noise, the same for every token, and no step is made of the averages.
"""

import asyncio
import sys
import time
import zlib
from pathlib import Path
from typing import Any, cast

import numpy as np

from peer_agent.averaging.codecs import Floats
from peer_agent.averaging.contributor import Sending
from peer_agent.display.lines import View
from peer_agent.machine.limits import Limits
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import RecordHead, Unit
from peer_agent.protocol.recipe import Recipe, parse_recipe
from peer_agent.protocol.trainer import events as e
from peer_agent.relay.place import Place
from peer_agent.site.credential import RunAccess
from peer_agent.trainer.accumulation import Accumulation
from peer_agent.trainer.agent import Agent
from peer_agent.trainer.follower import Follower
from peer_agent.trainer.jobs import Jobs
from peer_agent.training.computed import Computed, Taken
from tests.benchmarks.agents.held import Held, places_in, save_average, save_held, tokens_at
from tests.benchmarks.rig.machines import OwnAccess
from tests.benchmarks.rig.processes import leave_with_parent

NATS = 2.5  # a token
LOG = "agent.log"


class NoModel:
    """In place of a replica: its digest says which averages it would have been made of."""

    def __init__(self, folder: Path, elements: int) -> None:
        self.folder, self.places = folder, places_in(elements)
        self.step, self._digest = 0, ""

    def apply(self, record: RecordHead, _: str, gradient: Floats) -> None:
        """Keep some of the averages."""
        save_average(self.folder, record.step - 1, gradient[self.places])
        self.step, self._digest = record.step, f"{zlib.crc32(repr(record.spans).encode()):016x}"

    def digest(self) -> str:
        """Of the last update."""
        return self._digest


class Noise:
    """In place of what computes gradients."""

    def __init__(self, model: NoModel, recipe: Recipe, noise: Floats, sample_s: float) -> None:
        self.model, self.recipe, self.noise, self.sample_s = model, recipe, noise, sample_s
        self.units: tuple[m.DoneUnit, ...] = ()
        self.tokens = 0

    def compute(self, unit: Unit) -> Computed:
        """Take as long as it takes. In a thread."""
        base = self.model.step
        time.sleep(self.sample_s * unit.samples)
        _, tokens = self.recipe.tokens_in(unit.samples)
        return Computed(unit, base, NATS * tokens, tokens)

    def keep(self, done: Computed) -> None:
        """What is summed is in proportion to the tokens."""
        self.units = (*self.units, m.DoneUnit(done.unit, done.base_step))
        self.tokens += done.loss_tokens

    def take_sum(self) -> Taken:
        """And begin a new one."""
        taken = Taken(self.noise * np.float32(self.tokens), self.tokens, NATS * self.tokens, self.units)
        self.discard()
        return taken

    def discard(self) -> None:
        """Begin a new one."""
        self.units, self.tokens = (), 0


class Linked(Follower):
    """There is no snapshot; the hello after it says that everybody who listens is linked, so that rounds are whole."""

    listeners: frozenset[PeerId] = frozenset()

    async def load(self, snapshot: m.Snapshot) -> str:
        """Wait until then."""
        while not self.listeners <= self.links.open.keys():  # noqa: ASYNC110 (a dictionary cannot be awaited)
            await asyncio.sleep(0.01)
        return snapshot.state_digest


class Watched(Accumulation):
    """Some of what it holds is kept at each cut."""

    folder: Path
    places: Any

    def freeze(self, action: e.Freeze) -> Sending | None:
        """As it is, and then look at it."""
        sending = super().freeze(action)
        tokens = tokens_at(action.weights, self.places // self.grid.chunk_elements)
        save_held(self.folder, action.cut.step, Held(self.accumulator._sum[self.places], tokens))
        return sending


class TimedJobs(Jobs):
    """Jobs without torch."""

    sample_s = 0.0

    async def become_replica(self, greeting: m.Greeting) -> tuple[Follower, Accumulation]:
        """A timer and noise."""
        agent, elements = self.agent, greeting.elements
        folder, me = agent.home.folder, agent.access.peer
        model = NoModel(folder, elements)
        noise = np.random.default_rng(int(me, 16)).standard_normal(elements, dtype=np.float32)
        follower = Linked(agent.home, agent.access, agent.links, cast("Any", model))
        follower.listeners = frozenset(listener.peer for listener in greeting.listeners) - {me}
        gradients: Any = Noise(model, parse_recipe(greeting.recipe), noise, self.sample_s)
        accumulation = Watched(gradients, grid_of(elements), follower.busy)
        accumulation.folder, accumulation.places = folder, model.places
        return follower, accumulation


async def train(access: RunAccess, sample_s: float, place: Place | None) -> None:
    """Until ended. What it would tell a person is in its folder."""
    with (access.home.folder / LOG).open("w") as words:
        agent = Agent(access.home, access, Limits(threads=1, reserve_percent=0), View(words), place)
        agent.jobs = jobs = TimedJobs(agent)
        jobs.sample_s = sample_s
        await agent.run()


def main(folder: str, peer: str, control: str, seconds: str, address: str = "") -> None:
    """Train until ended; with an address, others can dial it there. `seconds`: of a sample."""
    leave_with_parent()
    access = OwnAccess(Path(folder), PeerId(peer), Role.TRAINER, control)
    asyncio.run(train(access, float(seconds), Place(address) if address else None))


if __name__ == "__main__":
    main(*sys.argv[1:])
