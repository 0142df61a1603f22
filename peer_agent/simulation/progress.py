"""Whether a run stands still although it could go on: judged from what really is the case, not from what is believed.

The simulator knows everything: who lives, computes, speaks with the site and reaches every relay. From their speeds
follows how long a round usually takes; time that passes while the batch could be filled is counted in such rounds.
"""

from msgspec import Struct

from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World

LOOK_S = 1.0
OVERHEAD_S = 4.0  # of a usual round, beside computing: offers, chunks, the database, and the units under way
REDUCE_S = 1.5  # of a trainer's chunks, at a relay's usual pace; longer where somebody's link is slower
PATIENCE = 10.0  # usual times without a commit


class Standstill(Struct, frozen=True):
    """Where and when a run stood still."""

    step: int
    at_s: float  # virtual, from the beginning
    why: str  # how the host explains it, for whoever looks for the cause


class Progress:
    """Counts rounds in which nothing was committed for ten usual times while the batch could be filled."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began_at = world.clock.now
        self.stuck: list[Standstill] = []
        self.passed = 0.0  # usual times since the last commit
        self._step = world.database.step
        world.clock.after(LOOK_S, self._look)

    def _look(self) -> None:
        world = self.world
        if world.database.step != self._step:
            self._step, self.passed = world.database.step, 0.0
        usual_s = usual_round_s(world)
        if usual_s is not None:
            self.passed += LOOK_S / usual_s
        if self.passed >= PATIENCE:
            self.passed = 0.0
            self.stuck.append(Standstill(self._step, round(world.clock.now - self.began_at, 1), explanation(world)))
        world.clock.after(LOOK_S, self._look)


def usual_round_s(world: World) -> float | None:
    """Seconds that a round usually takes with those who could work now; None while the batch cannot be filled."""
    host, now = world.host, world.clock.now
    if host is None or host.frozen or now < world.layer_back_at or not world.database.answers(now):
        return None
    if world.goal != "running" or world.database.step >= world.recipe.target_steps:
        return None
    relays = [r for r in world.relays.values() if r.alive and not r.frozen and not r.disk_full and r.session]
    able = [trainer for trainer in world.trainers.values() if _is_able(world, trainer)]
    if not relays or len(able) < world.recipe.minimum_trainers:
        return None
    slowest_s = max(REDUCE_S, world.grid.chunks / min(trainer.chunks_per_s for trainer in able))
    reduce_s = slowest_s / min(relay.pace for relay in relays)
    return world.recipe.target_batch / sum(t.samples_per_s for t in able) + reduce_s + OVERHEAD_S


def _is_able(world: World, trainer: Trainer) -> bool:
    """Whether a trainer computes sound gradients that reach every relay, and speaks with the site."""
    is_well = trainer.alive and not (trainer.frozen or trainer.hung or trainer.damaged or trainer.corrupt)
    return is_well and trainer.session is not None and not _is_far(world, trainer)


def _is_far(world: World, trainer: Trainer) -> bool:
    return bool(world.unreachable) and any((trainer.peer, relay) in world.unreachable for relay in world.relays)


def explanation(world: World) -> str:
    """What the host of a run says that it waits for, and where it is."""
    state = world.host.state if world.host is not None else None
    return f"{state.phase}, waiting for: {state.waiting or 'nothing'}" if state is not None else "no host"
