"""Several sources, mixed by weight: no sample counts twice, despite restarts and weight changes."""

from collections import Counter

import pytest

from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.log.records import Record, Unit
from peer_agent.protocol.recipe import parse_recipe
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, state

SHARDS, SOURCES = (400, 3001, 90, 1300), (0, 1, 0, 1)


def used(records: list[Record]) -> list[Unit]:
    return [unit for record in records for entry in record.contributions for unit in entry.units]


def by_source(records: list[Record]) -> list[float]:
    counts = Counter[int]()
    for unit in used(records):
        counts[SOURCES[unit.shard]] += unit.samples
    return [counts[source] / counts.total() for source in (0, 1)]


def mixed_world(weights: tuple[float, ...], steps: int) -> World:
    world, _ = checked_world(thorough=False, trainers=3, steps=steps, shards=SHARDS, sources=SOURCES, mix=weights)
    return world


def test_mix_follows_its_weights_through_restart_and_change() -> None:
    world = mixed_world((0.23, 0.77), 90)
    assert world.run_steps(20)
    world.restart_host(3.0)
    assert world.run_steps(20)
    assert by_source(world.database.records) == pytest.approx([0.23, 0.77], abs=0.03)
    world.direct("running", mix=(3.0, 1.0))
    assert world.tally.notes["mixed"] == 1
    world.direct("running", mix=(3.0, 1.0))
    assert world.tally.notes["mixed"] == 1, "that is no change"
    assert parse_recipe(state(world).recipe_bytes).mix == (3.0, 1.0)
    assert world.run_steps(4)  # these steps use samples that were leased before the change
    since = len(world.database.records)
    assert world.run_steps(15)
    world.restart_host(3.0)
    assert world.run_steps(15)
    assert by_source(world.database.records[since:]) == pytest.approx([0.75, 0.25], abs=0.05)
    assert {record.mix for record in world.database.records[:40]} == {(0.23, 0.77)}
    assert {record.mix for record in world.database.records[since:]} == {(3.0, 1.0)}


def test_each_source_goes_through_epochs_of_its_own() -> None:
    """The invariants fail if a sample is in two updates, or if it is in none although its source has moved on."""
    world = mixed_world((0.5, 0.5), 200)
    assert world.run_steps(150, 3000)
    epochs = [source.epoch for source in state(world).leases.sources]
    assert epochs[0] > 2
    assert epochs[1] == 0
    whole = Counter((unit.epoch, unit.shard) for unit in used(world.database.records) for _ in range(unit.samples))
    for epoch in range(epochs[0] - 1):
        assert (whole[epoch, 0], whole[epoch, 2]) == (400, 90)


@pytest.mark.parametrize("sources", [(), (0, 2, 0, 1)])
def test_weights_that_do_not_fit_the_data_mix_nothing(sources: tuple[int, ...]) -> None:
    world, _ = checked_world(thorough=False, trainers=2, steps=8, shards=SHARDS, sources=sources)
    assert world.run_steps(2)
    world.direct("running", mix=(1.0, 1.0))
    assert "mixed" not in world.tally.notes
    assert len(state(world).leases.sources) == 1
    assert world.run_steps(2)
    assert {record.mix for record in world.database.records} == {()}


def test_weights_of_data_that_name_no_sources_mix_nothing() -> None:
    world, _ = checked_world(thorough=False, trainers=2, steps=8, shards=SHARDS, mix=(1.0, 3.0))
    assert world.run_steps(2)
    assert {record.mix for record in world.database.records} == {()}, "that is not how they were leased"


def test_an_organizer_who_says_nothing_of_weights_changes_none() -> None:
    world = mixed_world((1.0, 3.0), 8)
    assert world.run_steps(1)
    host = world.host
    assert host is not None
    host.handle(e.Directed("running", 9))
    assert state(world).recipe.mix == (1.0, 3.0)
