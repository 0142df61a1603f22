"""Once a round's time is known, a slow or stopped peer loses chunks but costs the other peers no time (rule 8)."""

import pytest

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Record, is_everywhere
from peer_agent.simulation.world import World
from tests.simulation.checked_world import checked_world, relays, run_to, state, trainers

CHUNKS = 80
PER_S = 4.0
ROUND_S = CHUNKS / PER_S


def alike(people: int = 5, count: int = 1) -> World:
    """Return a world of trainers with equal links. Three rounds have revealed the link rates."""
    world, _ = checked_world(
        thorough=False, trainers=people, relays=count, steps=40, elements=CHUNKS * 16384, even=True
    )
    for trainer in trainers(world):
        trainer.chunks_per_s = PER_S
    assert world.run_steps(3, 900)
    return world


def timed(world: World) -> float:
    """Return how many seconds pass from the next plan until its update is in the database. Stop before the next cut."""
    begin_round(world)
    return finish_round(world, world.clock.now)


def begin_round(world: World) -> float:
    run_to(world, Phase.ACCUMULATE)
    run_to(world, Phase.REDUCE)
    round_ = state(world).round
    assert round_ is not None
    assert round_.plan is not None
    assert round_.plan.duration_s == pytest.approx(ROUND_S / len(relays(world)), rel=0.25)
    assert round_.plan.sigma > 0
    return world.clock.now


def finish_round(world: World, begun: float) -> float:
    assert world.run_steps(1, 200)
    return world.clock.now - begun


def last(world: World) -> Record:
    return world.database.records[-1]


def notes_of(world: World, kind: str) -> int:
    return world.tally.notes.get(kind, 0)


def test_who_keeps_up_is_in_every_chunk() -> None:
    world = alike()
    for _ in range(3):
        assert timed(world) == pytest.approx(ROUND_S, rel=0.1)
    assert all(record.exact for record in world.database.records)
    assert not notes_of(world, "late")
    assert not notes_of(world, "dropped")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_slow_or_stopped_sender_costs_only_its_chunks(is_stopped: bool) -> None:
    world = alike()
    usual_s = timed(world)
    begun = begin_round(world)
    world.wait(ROUND_S / 4)
    poor = trainers(world)[0]
    poor.chunks_per_s = PER_S / 10
    if is_stopped:
        poor.freeze()
    assert finish_round(world, begun) <= 1.15 * usual_s
    record = last(world)
    assert not record.exact
    (partly,) = [part for part in record.contributions if not is_everywhere(part, record)]
    assert partly.peer == poor.peer
    assert len(partly.included) == 1, "what came in time is in the average"
    assert notes_of(world, "dropped") == 1
    assert notes_of(world, "void") == 0
    if not is_stopped:
        assert world.run(lambda: poor.core.carried > 0, 10), "and the rest is carried over"


def test_a_slow_relay_finds_nobody_late() -> None:
    world = alike()
    begun = begin_round(world)
    relays(world)[0].pace = 0.3
    assert finish_round(world, begun) > 2 * ROUND_S
    assert last(world).exact
    assert not notes_of(world, "late")
    assert not notes_of(world, "dropped")


def test_nor_does_one_that_slept() -> None:
    world = alike()
    begun = begin_round(world)
    world.wait(ROUND_S / 2)
    (relay,) = relays(world)
    relay.freeze()
    world.wait(ROUND_S / 2)
    relay.thaw()
    assert finish_round(world, begun) > ROUND_S
    assert last(world).exact
    assert not notes_of(world, "dropped")


def test_where_all_are_slower_than_planned_nobody_is_left_out() -> None:
    world = alike()
    begun = begin_round(world)
    for number, trainer in enumerate(trainers(world)):
        trainer.chunks_per_s = PER_S / (3.0 + 0.05 * number)
    finish_round(world, begun)
    assert last(world).exact
    assert not notes_of(world, "late")
    assert not notes_of(world, "dropped")


def test_relay_stopped_in_a_round_is_replaced_before_others_end() -> None:
    world = alike(count=2)
    begun = begin_round(world)
    first, second = relays(world)
    world.wait(ROUND_S / 8)
    second.freeze()
    assert world.run(lambda: notes_of(world, "replan") == 1, 30)
    assert world.clock.now - begun < ROUND_S / 2, "the other would need so long for its part"
    finish_round(world, begun)
    assert last(world).exact
    assert last(world).attempt == 2
    assert notes_of(world, "void") == 0
    assert first.peer in {span.reducer for span in last(world).spans}
