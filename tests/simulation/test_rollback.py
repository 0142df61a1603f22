"""A run is rolled back in any phase: one log entry, no peer left behind, and nothing counted twice."""

import pytest

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.simulation.database import Fault
from peer_agent.simulation.faults import Kind
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, run_to, trainers

ANY_TIME = [Phase.ACCUMULATE, Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
BACK_TO = 4
UNKIND: tuple[Kind, ...] = ("lost up", "lost down", "twice up", "twice down", "late up", "late down", "unheard")


def trained(seed: int = 0) -> World:
    """Return a world after ten steps, with a snapshot at every fourth step."""
    world, _ = checked_world(trainers=3, relays=2, steps=40, snapshot_every=4, seed=seed)
    assert world.run_steps(10)
    return world


def rollbacks(world: World) -> list[int]:
    return [record.index for record in world.database.records if record.kind == "rollback"]


def rolls_back(world: World, limit_s: float = 60.0) -> None:
    """Roll back, and check that the run continues from exactly one log entry."""
    world.roll_back(BACK_TO)
    assert world.run(lambda: bool(rollbacks(world)), limit_s)
    assert world.database.step == BACK_TO
    assert world.database.back_to is None


def all_follow(world: World) -> None:
    """Check that every living replica reaches the head of the log a few steps later."""
    assert world.run_steps(6, 600)
    (index,) = rollbacks(world)
    assert world.database.index == index + world.database.step - BACK_TO
    world.direct("paused")
    world.wait(60)
    for trainer in trainers(world):
        assert (trainer.core.index, trainer.core.step) == (world.database.index, world.database.step)
        assert trainer.core.digest == trainer._digest(world.log_digest(world.database.index))


@pytest.mark.parametrize("phase", ANY_TIME)
def test_in_any_phase(phase: Phase) -> None:
    world = trained()
    run_to(world, phase)
    rolls_back(world)
    all_follow(world)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("down_s", [0.1, 20.0])
def test_the_host_dies_with_the_wish_unfulfilled(phase: Phase, down_s: float) -> None:
    world = trained()
    run_to(world, phase)
    world.roll_back(BACK_TO)
    world.wait(0.2)
    world.restart_host(down_s)
    assert world.run(lambda: bool(rollbacks(world)), 60)
    all_follow(world)


@pytest.mark.parametrize("fault", ["failed", "answer lost", "unknown and not written"])
def test_a_database_in_trouble_neither_loses_it_nor_makes_two(fault: Fault) -> None:
    world = trained()
    run_to(world, Phase.ACCUMULATE)
    world.database.script += [fault] * 3
    rolls_back(world)
    all_follow(world)


@pytest.mark.parametrize("seed", range(6))
def test_where_letters_are_lost_doubled_and_late(seed: int) -> None:
    world = trained(seed)
    world.faults.odds = dict.fromkeys(UNKIND, 0.08)
    rolls_back(world)
    assert world.run_steps(2, 600)
    world.faults.odds = {}
    all_follow(world)


def test_whoever_was_away_or_comes_late_begins_from_there() -> None:
    world = trained()
    away, late = trainers(world)[:2]
    away.freeze()
    late.kill()
    rolls_back(world)
    assert world.run_steps(3, 600)
    away.thaw()
    late.start()
    all_follow(world)
