"""A run that its organizer ends early or extends, tested at every point of a round."""

import pytest

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.schedule import float32, learning_rate
from peer_agent.protocol.timing import LONGEST_S
from peer_agent.recipes import parse_recipe
from tests.simulation.checked_world import checked_world, run_to, state, trainers

ANY_TIME = list(Phase)


@pytest.mark.parametrize("phase", ANY_TIME)
def test_a_run_that_is_ended_hands_in_its_present_step(phase: Phase) -> None:
    world, _ = checked_world(trainers=3, steps=1000, snapshot_every=50)
    world.run_steps(2)
    run_to(world, phase)
    at = world.database.step
    world.direct("finishing")
    assert world.run(lambda: world.tally.finished, 100)
    step = world.database.step
    assert at <= step <= at + 1, "only the round under way may commit"
    assert world.database.snapshot.step == step
    world.wait(60)
    assert world.database.step == step


def test_an_ended_run_stays_ended_when_its_host_dies() -> None:
    world, _ = checked_world(trainers=2, steps=1000, snapshot_every=50)
    world.run_steps(2)
    run_to(world, Phase.REDUCE)
    world.direct("finishing")
    world.restart_host()
    assert world.run(lambda: world.tally.finished, 200)
    assert world.database.snapshot.step == world.database.step < 5


def test_an_ended_run_waits_for_somebody_who_has_its_model() -> None:
    world, _ = checked_world(trainers=2, steps=1000, snapshot_every=50)
    world.run_steps(3)
    for trainer in trainers(world):
        trainer.kill()
    world.direct("finishing")
    world.wait(3 * LONGEST_S)
    assert not world.tally.finished
    assert state(world).waiting == "the last step is done; the final model is being uploaded or rebuilt from the log"
    trainers(world)[0].start()
    assert world.run(lambda: world.tally.finished, 200)
    assert world.database.snapshot.step == world.database.step


def test_ended_run_without_trainers_is_released_as_it_is() -> None:
    world, _ = checked_world(trainers=2, steps=1000, snapshot_every=2)
    world.run(lambda: world.database.snapshot.step >= 2 and world.database.step % 2 == 1, 100)
    for trainer in trainers(world):
        trainer.kill()
    world.direct("finishing")
    world.wait(LONGEST_S / 2)
    assert not world.tally.finished
    assert world.run(lambda: world.tally.finished, LONGEST_S)
    assert 2 <= world.database.snapshot.step <= world.database.step


@pytest.mark.parametrize("phase", ANY_TIME)
def test_a_run_is_made_longer_and_the_schedule_with_it(phase: Phase) -> None:
    world, _ = checked_world(trainers=2, steps=6, snapshot_every=4)
    world.run_steps(2)
    run_to(world, phase)
    at = world.database.step
    world.direct("running", target_steps=12)
    assert parse_recipe(state(world).recipe_bytes).target_steps == 12, "newcomers are told"
    assert world.run(lambda: world.tally.finished)
    records = world.database.records
    assert [record.step for record in records] == list(range(1, 13))
    optimizer = state(world).recipe.optimizer
    for record in records:
        steps = 6 if record.step <= at else 12
        allowed = {steps, 6} if record.step == at + 1 else {steps}  # the next record may have been written already
        rates = {float32(learning_rate(optimizer, record.step, steps)) for steps in allowed}
        assert record.scalars.learning_rate in rates
    assert world.database.snapshot.step == 12


def test_a_run_that_is_made_longer_after_its_last_step_goes_on() -> None:
    world, _ = checked_world(trainers=2, steps=4, snapshot_every=50)
    world.run(lambda: world.database.step == 4, 100)
    world.direct("running", target_steps=7)
    assert not world.tally.finished
    assert world.run(lambda: world.tally.finished)
    assert world.database.step == world.database.snapshot.step == 7
