"""Runs with staleness 1: sound in all conditions, faster when the exchange takes long, and never too stale."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.simulation.__main__ import setting_of
from peer_agent.simulation.churn import only
from peer_agent.simulation.faults import Kind
from peer_agent.simulation.simulate import simulate
from peer_agent.simulation.site import Host
from peer_agent.simulation.world import Setting
from tests.simulation.checked_world import checked_world, relays, run_to, trainers
from tests.simulation.conditions import ALL_KINDS, all_at_once
from tests.simulation.test_simulate import ALONE, require_sound, watched_simulation


@pytest.mark.check
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_run_survives_each_weather_alone(kind: Kind) -> None:
    simulation = watched_simulation(replace(setting_of(8, 25, 1, 2), staleness=1), only({kind}, ALONE))
    simulation.run()
    require_sound(simulation.figures())


@pytest.mark.check
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_survives_all_weathers_in_one_world(seed: int) -> None:
    simulation = watched_simulation(replace(setting_of(30, 60, seed, 2), staleness=1), all_at_once())
    simulation.run()
    require_sound(simulation.figures())


def test_calm_run_is_whole_and_fair_and_marked_inexact() -> None:
    figures = simulate(Setting(trainers=10, relays=2, steps=10, seed=1, even=True, staleness=1))
    require_sound(figures)
    assert (figures.void_rounds, figures.faults) == (0, {})
    assert figures.exact_rounds < 3 < figures.notes["step"]
    assert figures.fairness > 0.99
    assert figures.computed_samples - figures.samples < 0.1 * figures.samples, "what is computed is used"


def step_s(staleness: int) -> float:
    """Return how many seconds a step takes with a slow relay. A batch has 8 samples from each trainer, computed at 4
    per second.
    """
    world, _ = checked_world(trainers=4, steps=40, even=True, staleness=staleness, minimum_trainers=4)
    assert world.run_steps(3)
    for relay in relays(world):
        relay.pace = 0.2
    assert world.run_steps(3)
    begun = world.clock.now
    assert world.run_steps(10)
    return (world.clock.now - begun) / 10


def test_step_takes_the_longer_of_computing_and_exchange() -> None:
    one_after_the_other, overlapping = step_s(0), step_s(1)
    assert overlapping > 4.0, "the exchange itself"
    assert one_after_the_other - overlapping == pytest.approx(2.0, abs=0.3)


class Ages:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def before(self, host: Host, event: e.Event, now: float) -> None:
        if isinstance(event, e.Received) and isinstance(event.message, m.Offer):
            self.seen |= {host.state.step - done.base for done in event.message.units}

    def after(self, host: Host, event: e.Event, commands: Sequence[e.Command], now: float) -> None:
        pass

    def persisted(self, _: Host, command: e.Persist, outcome: str) -> None:
        pass


def test_what_is_offered_is_of_this_step_or_the_one_before() -> None:
    world, _ = checked_world(trainers=6, steps=30, staleness=1)
    ages = Ages()
    world.observers.append(ages)
    assert world.run_steps(20)
    assert ages.seen == {0, 1}
    assert "returned" not in world.tally.notes


def test_site_restart_in_a_round_loses_neither_sum() -> None:
    world, _ = checked_world(trainers=4, steps=30, even=True, staleness=1)
    assert world.run_steps(3)
    run_to(world, Phase.REDUCE)
    world.wait(0.5)
    held = {unit for trainer in trainers(world) for unit in trainer.done}
    beside = {unit for trainer in trainers(world) for unit in trainer.core.fresh}
    assert beside
    assert beside < held
    before = world.database.step
    world.restart_host()
    assert world.run(lambda: world.database.step >= before + 2, 600.0)
    made = {unit for record in world.database.records for entry in record.contributions for unit in entry.units}
    assert held <= made


def test_a_trainer_that_reconnects_in_a_round_keeps_both_sums() -> None:
    world, _ = checked_world(trainers=4, steps=30, even=True, staleness=1)
    assert world.run_steps(3)
    run_to(world, Phase.REDUCE)
    world.wait(0.5)
    victim = next(trainer for trainer in trainers(world) if trainer.core.fresh)
    held, accumulator = set(victim.done), victim.accumulator
    victim.reconnect(0.2)
    assert world.run_steps(3)
    made = {unit for record in world.database.records for entry in record.contributions for unit in entry.units}
    assert held <= made
    assert victim.accumulator == accumulator
