"""Faults of the host or its database, or at the end of a run, with every invariant checked."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import pytest

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.timing import LONGEST_S, USUAL_S
from peer_agent.simulation.database import Fault
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting, World
from tests.simulation.checked_world import checked_world, run_to, state, trainers

IN_A_ROUND = [Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
ANY_TIME = [Phase.ACCUMULATE, *IN_A_ROUND]


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("down_s", [0.1, 20.0])
def test_the_host_dies_in_any_phase(phase: Phase, down_s: float) -> None:
    world, _ = checked_world(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    computed = sum(trainer.computed for trainer in trainers(world))
    world.restart_host(down_s)
    assert world.run_steps(4, 300)
    assert sum(trainer.computed for trainer in trainers(world)) > computed
    world.run_steps(4)
    assert not state(world).leases.orphans
    credited = sum(record.samples for record in world.database.records)
    assert credited >= computed, "nothing that was computed before is lost"


@pytest.mark.parametrize("fault", ["failed", "answer lost", "unknown and not written"])
def test_a_database_in_trouble_delays_a_step_and_no_more(fault: Fault) -> None:
    world, _ = checked_world(trainers=2, steps=8)
    world.run_steps(1)
    world.database.script += [fault] * 3
    assert world.run_steps(4, 100)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("asleep_s", [3.0, 100.0])
def test_a_suspended_host_judges_nobody_for_its_sleep(phase: Phase, asleep_s: float) -> None:
    world, _ = checked_world(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    host = world.host
    assert host is not None
    host.freeze()
    world.clock.after(asleep_s, host.thaw)
    assert world.run_steps(3, 60 + asleep_s)
    assert "void" not in world.tally.notes
    assert "dropped" not in world.tally.notes


@pytest.mark.parametrize("phase", ANY_TIME)
def test_the_organizer_pauses_and_resumes(phase: Phase) -> None:
    world, _ = checked_world(trainers=3, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    world.direct("paused")
    world.wait(30)
    step = world.database.step
    assert state(world).waiting == "the organizer has paused the run"
    world.wait(60)
    assert world.database.step == step
    world.direct("running")
    assert world.run_steps(4, 60)


def test_last_snapshot_is_requested_until_it_is_handed_in() -> None:
    world, _ = checked_world(trainers=2, steps=3, snapshot_every=50)
    world.run_steps(3)
    world.run(lambda: state(world).keeper is not None, 10)
    keeper = state(world).keeper
    assert keeper is not None
    world.trainers[keeper.peer].kill()
    assert world.run(lambda: world.tally.finished, 200)


class Asked:
    """An observer that records when the site is asked to make the last state from the log."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def before(self, host: Host, event: e.Event, now: float) -> None:
        pass

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        self.at += [now for command in commands if isinstance(command, e.Replay)]

    def persisted(self, host: Host, command: e.Persist, outcome: Literal["committed", "stale", "failed"]) -> None:
        pass


def test_site_is_asked_for_the_last_state_without_trainers() -> None:
    asked = Asked()
    world = World(Setting(trainers=2, steps=3, snapshot_every=50), [asked])
    world.run_steps(3)
    for trainer in trainers(world):
        trainer.kill()
    gone_at = world.clock.now
    world.wait(150)
    assert 2 <= len(asked.at) <= 4
    assert asked.at[0] >= gone_at + USUAL_S
    assert all(late - early >= LONGEST_S for early, late in pairwise(asked.at))
    assert "rebuilt from the log" in state(world).waiting
    world.store_snapshot(world.database.records[-1])
    assert world.run(lambda: world.tally.finished, 10)


def test_while_somebody_can_hand_it_in_the_site_is_not_asked() -> None:
    asked = Asked()
    world = World(Setting(trainers=2, steps=3, snapshot_every=50), [asked])
    assert world.run(lambda: world.tally.finished, 200)
    world.wait(100)
    assert asked.at == []


def test_host_that_dies_after_the_last_snapshot_finishes_later() -> None:
    world, _ = checked_world(trainers=1, steps=3)
    world.run_steps(3)
    world.kill_host()
    world.store_snapshot(world.database.records[-1])
    world.start_host()
    assert world.run(lambda: world.tally.finished, 100)
