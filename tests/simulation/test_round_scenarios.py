"""Rounds that take long, fail or cannot continue, with every invariant checked."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from peer_agent.protocol.coordinator.state import DIVERGED, Phase
from tests.simulation.checked_world import checked_world, relays, run_to, state, trainers


def test_a_returning_trainer_is_told_that_its_attempt_is_over() -> None:
    world, _ = checked_world(trainers=3, steps=9, even=True)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    sleeper, *others = trainers(world)
    sleeper.disconnect()
    for other in others:
        other.kill()
    world.wait(3)
    assert state(world).phase is Phase.ACCUMULATE
    assert sleeper.cut is not None
    sleeper.connect()
    world.wait(1)
    assert sleeper.cut is None


def test_leases_of_an_absent_trainer_come_back_after_some_rounds() -> None:
    world, _ = checked_world(trainers=4, steps=30)
    world.run_steps(1)
    gone = trainers(world)[0]
    run_to(world, Phase.ACCUMULATE)
    world.wait(0.5)
    gone.kill()
    world.wait(1)
    assert gone.accumulator in state(world).leases.held
    world.run_steps(GRACE_ROUNDS + 1, 300)
    world.wait(0.2)
    assert gone.accumulator not in state(world).leases.held


def test_moving_round_is_given_time_and_a_stalled_one_is_void() -> None:
    world, _ = checked_world(trainers=2, steps=9, even=True, elements=100 * 16 * 1024)
    for trainer in trainers(world):
        trainer.chunks_per_s = 1.0
    assert world.run_steps(1, 200), "100 s is more than any fixed wait, but it moves"
    assert "void" not in world.tally.notes
    run_to(world, Phase.REDUCE)
    relays(world)[0].freeze()
    world.wait(600)  # four times as long as the known links should take
    assert world.tally.notes["void"] >= 1


def test_a_model_that_has_diverged_stops_the_run_and_says_why() -> None:
    world, _ = checked_world(trainers=2, steps=50, even=True)
    world.run_steps(2)
    run_to(world, Phase.ACCUMULATE)
    for _ in range(200):
        if len(state(world).ready()) == 2:
            break
        world.wait(0.02)
    host = world.host
    assert host is not None
    for _ in range(DIVERGED):
        for trainer in trainers(world):
            leased = sorted(state(world).leases.held.get(trainer.accumulator, ()))
            message = m.UnitsReturned(run=state(world).run, units=tuple(leased), reason="non_finite")
            for _ in range(2):  # a change reported twice is one line of the timeline
                host.handle(e.Received(trainer.peer, message))
        world.wait(0.25)
    assert state(world).has_diverged
    world.wait(0.5)
    assert "diverged" in state(world).waiting
    assert world.tally.notes["non-finite"] == 2
