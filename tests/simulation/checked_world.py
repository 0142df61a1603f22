"""Simulated worlds whose invariants are checked, and ways to reach a particular moment in them."""

from typing import Any

from peer_agent.protocol.coordinator.state import Phase, RunState
from peer_agent.simulation.relay import Relay
from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import Setting, World
from tests.simulation.invariants import Invariants


def checked_world(*, thorough: bool = True, **setting: Any) -> tuple[World, Invariants]:
    """Return a world and its invariants, checked after every event."""
    invariants = Invariants(thorough=thorough)
    return invariants.watch(World(Setting(**setting))), invariants


def state(world: World) -> RunState:
    assert world.host is not None
    return world.host.state


def run_to(world: World, phase: Phase, *, held: int = 0) -> None:
    """Run until the coordinator is in a phase and at least `held` spans of the open round are done."""

    def is_there() -> bool:
        if world.host is None or state(world).phase is not phase:
            return False
        round_ = state(world).round
        return not held or (round_ is not None and len(round_.done) >= held)

    assert world.run(is_there, 600.0)


def trainers(world: World) -> list[Trainer]:
    return list(world.trainers.values())


def relays(world: World) -> list[Relay]:
    return list(world.relays.values())
