"""A relay that dies, freezes or lies, with every invariant checked after every event."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol.coordinator.state import Phase
from tests.simulation.checked_world import checked_world, relays, run_to, state, trainers

IN_A_ROUND = [Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
ANY_TIME = [Phase.ACCUMULATE, *IN_A_ROUND]


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("away_s", [0.1, 3.0, 60.0])
def test_the_only_relay_dies_and_returns(phase: Phase, away_s: float) -> None:
    world, _ = checked_world(trainers=3, steps=12)
    world.run_steps(2)
    run_to(world, phase)
    relays(world)[0].kill()
    world.clock.after(away_s, relays(world)[0].start)
    assert world.run_steps(5, 400)


def test_relay_death_in_a_round_keeps_the_others_spans() -> None:
    world, invariants = checked_world(trainers=3, relays=2, steps=12, elements=1200 * 16 * 1024, even=True)
    fast, slow = relays(world)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    slow.freeze()
    run_to(world, Phase.REDUCE, held=3)
    held = {span: done.root for span, done in state(world).round.done.items()}  # type: ignore[union-attr]
    slow.kill()
    assert world.run_steps(1, 300)
    record = world.database.records[-1]
    final = invariants.plans[record.step - 1, record.fence, record.attempt]
    kept = {span.span: span.root for span in final.spans if span.root}
    assert kept.items() >= held.items()
    assert {span.reducer for span in record.spans} == {fast.peer}
    assert {span.attempt for span in record.spans} == {record.attempt - 1, record.attempt}
    assert {span.root for span in record.spans} >= {root.hex() for root in held.values()}


@pytest.mark.parametrize("phase", [Phase.ACCUMULATE, Phase.OFFER, Phase.REDUCE])
def test_frozen_relay_of_two_is_replaced_within_two_void_rounds(phase: Phase) -> None:
    world, _ = checked_world(trainers=3, relays=2, steps=30)
    world.run_steps(2)
    run_to(world, phase)
    relays(world)[0].freeze()
    assert world.run_steps(5, 120)
    assert world.tally.notes.get("void", 0) <= 2
    assert world.tally.notes["replan"] >= 1, "the other does its part"
    assert "dropped" not in world.tally.notes, "no trainer is blamed for a relay"


def test_relay_that_returns_unnoticed_starts_again_at_once() -> None:
    world, _ = checked_world(trainers=3, steps=12, even=True)
    world.run_steps(2)
    run_to(world, Phase.REDUCE)
    relays(world)[0].kill()
    relays(world)[0].start()
    assert world.run_steps(1, 8)
    assert world.tally.notes["replan"] == 1
    assert "void" not in world.tally.notes


def test_round_void_without_relays_frees_its_trainers() -> None:
    """The attempt without relays was not announced to any peer, so the void message must name the attempt that the
    trainers know.
    """
    world, _ = checked_world(trainers=2, steps=12, even=True)
    world.run_steps(1)
    run_to(world, Phase.REDUCE)
    world.wait(0.3)
    relays(world)[0].kill()
    world.wait(1)
    lost, left = trainers(world)
    lost.kill()
    world.wait(2)
    assert state(world).phase is Phase.ACCUMULATE
    assert left.cut is None
    relays(world)[0].start()
    assert world.run_steps(3, 100), "one is enough to go on"


def test_relay_with_a_plan_of_an_earlier_host_is_sent_nothing() -> None:
    """Each host counts attempts from the start, so the number alone does not identify a plan."""
    world, invariants = checked_world(trainers=3, steps=12)
    run_to(world, Phase.REDUCE)
    sender = trainers(world)[0]
    assert world.run(lambda: sender.core.round is not None and sender.core.round.slot is not None, 30)
    plan = invariants.plans[max(invariants.plans)]
    slot = next(slot for slot in plan.slots if slot.peer == sender.peer)
    assert sender.sends(plan, slot)
    earlier = replace(plan, fence=plan.fence - 1, slots=(replace(slot, root=b"0" * 32),))
    assert not sender.sends(earlier, earlier.slots[0])
