"""Worlds whose plan chooses codecs and leaves out slow links: no trainer gets stuck, and no sample counts twice."""

from itertools import pairwise
from typing import Literal

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.simulation.simulate import simulate
from peer_agent.simulation.world import Setting, World
from tests.simulation.checked_world import checked_world, run_to, state, trainers
from tests.simulation.conditions import all_at_once

Contributors = Literal["all", "fast"]
Codecs = Literal["stated", "plan"]
FREE: list[tuple[Contributors, Codecs]] = [("all", "plan"), ("fast", "stated"), ("fast", "plan")]
STALENESS: tuple[Literal[0, 1], ...] = (0, 1)
ELEMENTS = 80 * 16384


def two_slow(contributors: Contributors, codecs: Codecs, **more: int) -> World:
    """Return a world in which a vector takes about one second over four links and ten seconds over the other two. The
    coordinator knows the rates after three rounds.
    """
    setting = {"trainers": 6, "slow_links": 2, "steps": 60, "elements": ELEMENTS, **more}
    world, _ = checked_world(even=True, contributors=contributors, codecs=codecs, thorough=False, **setting)
    assert world.run_steps(3, 900)
    return world


def seconds_of(world: World, steps: int = 10) -> float:
    begun = world.clock.now
    assert world.run_steps(steps, 900)
    return world.clock.now - begun


@pytest.mark.check
@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize(("seed", "contributors", "codecs"), [(n, *free) for n, free in enumerate(FREE)])
def test_runs_in_bad_weather_are_sound(
    seed: int, contributors: Contributors, codecs: Codecs, staleness: Literal[0, 1]
) -> None:
    """No trainer gets stuck, no sample or lease is lost or duplicated, and every replica is at the head of the log."""
    setting = Setting(trainers=6, relays=2, steps=40, seed=seed, slow_links=2, contributors=contributors, codecs=codecs)
    figures = simulate(replace(setting, staleness=staleness), all_at_once())
    assert figures.is_sound, (figures.reasons, figures.crash)


@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize(("contributors", "codecs"), FREE)
def test_steps_follow_one_another_faster_than_as_stated(
    contributors: Contributors, codecs: Codecs, staleness: int
) -> None:
    stated = seconds_of(two_slow("all", "stated", staleness=staleness))
    assert seconds_of(two_slow(contributors, codecs, staleness=staleness)) < 0.8 * stated


@pytest.mark.parametrize("staleness", STALENESS)
def test_left_out_trainers_follow_and_join_every_other_update(staleness: int) -> None:
    world = two_slow("fast", "stated", staleness=staleness)
    slow = [trainer.peer for trainer in trainers(world)[:2]]
    assert world.run_steps(12, 900)
    records = world.database.records[-12:]
    for peer in slow:
        included = [any(entry.peer == peer for entry in record.contributions) for record in records]
        assert 4 <= sum(included) <= 8
        assert not any(not a and not b for a, b in pairwise(included)), "never twice running"
    run_to(world, Phase.ACCUMULATE)
    world.wait(1.0)
    assert all(trainer.core.index >= world.database.index - 1 for trainer in trainers(world))


def test_only_steps_of_fresh_work_are_exact() -> None:
    """A trainer that was left out of a round offers units of the previous step."""
    world = two_slow("fast", "stated")
    base: dict[int, set[int]] = {}

    class Watch:
        def before(self, host: object, event: e.Event, now: float) -> None:
            del host, now
            if isinstance(event, e.Received) and isinstance(event.message, m.Offer):
                old = {event.message.step - done.base for done in event.message.units}
                base.setdefault(event.message.step + 1, set()).update(old)

        def after(self, *_: object) -> None:
            pass

        persisted = after

    world.observers.append(Watch())
    assert world.run_steps(10, 900)
    records = world.database.records[-9:]
    assert {age for record in records for age in base[record.step]} == {0, 1}, "carried once, and no more"
    assert all(record.exact == (base[record.step] == {0}) for record in records)
    assert {record.exact for record in records} == {True, False}


def test_a_run_in_which_all_links_are_as_slow_leaves_out_nobody() -> None:
    world = two_slow("fast", "stated", slow_links=0)
    for trainer in trainers(world):
        trainer.chunks_per_s = 4.0
    assert world.run_steps(8, 900)
    assert all(len(record.contributions) == 6 for record in world.database.records[-3:])
    assert state(world).void_rounds == 0
