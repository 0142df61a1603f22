"""What came of a simulated run, in numbers."""

import hashlib
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from peer_agent.protocol.coordinator import events as e
from peer_agent.simulation.churn import Weather, befall
from peer_agent.simulation.host import Host
from peer_agent.simulation.world import Setting, World


class Picture(Struct, frozen=True, kw_only=True):
    """A run at its end. `fairness`: Jain's index of samples credited per sample computed, over the trainers."""

    peers: int
    steps: int
    void_rounds: int
    replanned: int
    dropped: int
    restarts: int
    virtual_seconds: float
    samples: int
    computed_samples: int
    fairness: float
    exact_steps: int
    events: int
    trace: str


class Trace:
    """A digest of every event and command: equal for equal seeds."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def before(self, host: Host, event: e.Event, now: float) -> None:
        """Nothing yet."""

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        """Take both in."""
        self._hash.update(f"{now!r} {host.state.phase} {event!r} {commands!r}".encode())

    def persisted(self, _: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        """And what became of a record."""
        self._hash.update(f"{command.record.index} {outcome}".encode())

    def digest(self) -> str:
        """16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]


def simulate(setting: Setting, weather: Weather | None = None, limit_s: float = 86_400.0) -> Picture:
    """Run until the last step is committed and its model is handed in, or for so many virtual seconds."""
    trace = Trace()
    world = World(setting, [trace])
    if weather is not None:
        befall(world, weather)
    world.run(lambda: world.tally.finished, limit_s)
    return picture_of(world, trace.digest())


def picture_of(world: World, trace: str = "") -> Picture:
    """The numbers of a world as it is now."""
    records = world.database.records
    notes = world.tally.notes
    return Picture(
        peers=len(world.peers),
        steps=world.database.step,
        void_rounds=notes.get("void", 0),
        replanned=notes.get("replan", 0),
        dropped=notes.get("dropped", 0),
        restarts=world.tally.restarts,
        virtual_seconds=round(world.clock.now, 3),
        samples=sum(record.samples for record in records),
        computed_samples=sum(trainer.computed for trainer in world.trainers.values()),
        fairness=round(_fairness(world), 4),
        exact_steps=sum(record.exact for record in records),
        events=world.tally.events,
        trace=trace,
    )


def _fairness(world: World) -> float:
    credited = dict.fromkeys(world.trainers, 0)
    for record in world.database.records:
        for entry in record.contributions:
            credited[entry.peer] += entry.samples
    ratios = [credited[peer] / trainer.computed for peer, trainer in world.trainers.items() if trainer.computed]
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else 1.0
