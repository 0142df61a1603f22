"""The faults of the design's section 7, each alone, with every invariant checked after every event."""

import pytest

from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import is_everywhere
from tests.simulation.checked_world import checked_world, relays, run_to, state, trainers

IN_A_ROUND = [Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
ANY_TIME = [Phase.ACCUMULATE, *IN_A_ROUND]


# --- golden cases of rule 42


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_trainers_commit_exact_steps_through_one_relay(count: int) -> None:
    world, _ = checked_world(trainers=count, steps=6, snapshot_every=4)
    assert world.run(lambda: world.tally.finished)
    records = world.database.records
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(record.exact for record in records)
    assert sum(record.samples for record in records) >= 6 * 8 * count
    assert world.database.snapshot.step == 6
    assert "void" not in world.tally.notes


def test_fast_stranger_in_an_open_run_weighs_less_and_is_credited_in_full() -> None:
    """The invariants check the credit of each step."""
    world, _ = checked_world(trainers=4, steps=10, even=True, samples_each=32, trusted=frozenset())
    fast = trainers(world)[0]
    fast.samples_per_s *= 8
    assert world.run(lambda: world.tally.finished)
    last = world.database.records[-1]
    parts = {entry.peer: entry for entry in last.contributions}
    assert parts[fast.peer].samples > 2 * max(part.samples for peer, part in parts.items() if peer != fast.peer)
    assert [peer for peer, part in parts.items() if part.clipped] == [fast.peer]
    assert not last.exact


def test_run_without_a_relay_says_why_it_waits_and_then_resumes() -> None:
    world, _ = checked_world(trainers=2, steps=3)
    relays(world)[0].kill()
    world.wait(30)
    assert state(world).waiting == "no relay is connected"
    assert state(world).phase is Phase.ACCUMULATE
    assert world.database.step == 0
    relays(world)[0].start()
    assert world.run_steps(3)
    assert state(world).waiting == ""


# --- trainers


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_trainer_that_dies_in_any_phase_stops_nobody(phase: Phase, count: int) -> None:
    world, _ = checked_world(trainers=count, steps=12)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[0].kill()
    world.clock.after(5.0, trainers(world)[0].start)
    assert world.run_steps(5, 300)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("away_s", [0.05, 1.0, 40.0])
def test_a_lost_session_in_any_phase_loses_no_work(phase: Phase, away_s: float) -> None:
    world, _ = checked_world(trainers=4, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[1].reconnect(away_s)
    assert world.run_steps(10, 400)


@pytest.mark.parametrize("phase", ANY_TIME)
def test_a_frozen_trainer_of_three_costs_one_wait(phase: Phase) -> None:
    world, _ = checked_world(trainers=3, steps=14, even=True)
    world.run_steps(2)
    run_to(world, phase)
    trainers(world)[2].freeze()
    assert world.run_steps(1, 60)
    assert world.run_steps(4, 60), "the others go on without it"
    trainers(world)[2].thaw()
    assert world.run_steps(4, 60)
    assert any(entry.peer == trainers(world)[2].peer for entry in world.database.records[-1].contributions)


def test_lone_trainer_that_offers_slowly_is_awaited() -> None:
    world, _ = checked_world(trainers=1, steps=3)
    trainers(world)[0].offer_delay_s = 17.0
    assert world.run_steps(3, 600)


def test_all_trainers_gone_and_back() -> None:
    world, _ = checked_world(trainers=3, steps=10)
    world.run_steps(2)
    for trainer in trainers(world):
        trainer.kill()
    world.wait(60)
    assert world.database.step == 2
    assert state(world).waiting == "waiting for volunteers"
    for trainer in trainers(world):
        trainer.start()
    assert world.run_steps(5, 200)


@pytest.mark.parametrize("phase", ANY_TIME)
@pytest.mark.parametrize("banned", [False, True])
def test_leaving_or_banned_trainer_takes_no_committed_unit_along(phase: Phase, banned: bool) -> None:
    world, _ = checked_world(trainers=5, relays=2, steps=14)
    world.run_steps(2)
    run_to(world, phase)
    leaver = trainers(world)[0]
    leaver.latency_s = 0.001
    if banned:
        world.ban(leaver.peer)
    else:
        leaver.leave()
    assert world.run_steps(8, 300)
    assert leaver.peer not in state(world).members


def test_left_out_part_is_carried_and_offered_after_reconnecting() -> None:
    world, _ = checked_world(trainers=5, steps=14, elements=40 * 16 * 1024, even=True)
    world.run_steps(1)
    slow = trainers(world)[0]
    slow.chunks_per_s = 4.0
    run_to(world, Phase.REDUCE)
    world.wait(3.0)
    assert state(world).phase is Phase.REDUCE
    slow.reconnect(1.0)
    world.run_steps(1)
    slow.chunks_per_s = 100.0
    record = world.database.records[-1]
    assert not record.exact
    partly = [part for part in record.contributions if not is_everywhere(part, record)]
    assert [part.peer for part in partly] == [slow.peer], "some chunks had closed with it, others without"
    assert world.run(lambda: any(w.tokens == 0 for w in slow.core.held), 10), "what was averaged is settled"
    assert slow.core.carried > 0, "the rest is carried"
    world.run_steps(3)
    assert "returned" not in world.tally.notes
    assert slow.weights[0].tokens == slow.weights[-1].tokens
    sat_out, *back = (any(part.peer == slow.peer for part in r.contributions) for r in world.database.records[-3:])
    assert not sat_out, "it was dropped in mid-round"
    assert any(back)


def test_a_damaged_gradient_is_refused_and_the_round_goes_on() -> None:
    world, _ = checked_world(trainers=5, relays=2, steps=14)
    world.run_steps(1)
    trainers(world)[0].damaged = True
    run_to(world, Phase.REDUCE)
    assert world.run_steps(1, 100)
    assert world.tally.notes["dropped"] == 1
    assert world.tally.notes["returned"] == 1
    trainers(world)[0].damaged = False
    assert world.run_steps(5, 100)


def test_offer_too_late_and_too_old_gives_its_work_back() -> None:
    world, _ = checked_world(trainers=4, steps=20)
    world.run_steps(1)
    absent = trainers(world)[0]
    absent.offer_delay_s = 17.0
    assert world.run(lambda: absent.core.phase == "freeze" and bool(absent.core.kept), 60)
    held, accumulator = set(absent.core.kept), absent.core.accumulator
    absent.disconnect()
    absent.offer_delay_s = 0.05
    world.run_steps(2)
    absent.connect()
    assert world.run_steps(3, 100)
    assert not held & set(absent.done)
    assert absent.core.accumulator != accumulator
    assert accumulator not in state(world).leases.held


def test_work_of_a_missed_step_is_redone_on_the_new_one() -> None:
    """The work was not in any round yet, so no lease has to be returned."""
    world, _ = checked_world(trainers=4, steps=20)
    world.run_steps(1)
    absent = trainers(world)[0]
    assert world.run(lambda: bool(absent.core.fresh), 60)
    held, accumulator = set(absent.core.fresh), absent.core.accumulator
    absent.disconnect()
    assert world.run_steps(1, 60)
    absent.connect()
    assert world.run(lambda: held <= {*absent.core.queue, *absent.core.undone, *absent.done}, 10)
    assert world.run_steps(2, 60)
    assert absent.core.accumulator == accumulator
    assert "returned" not in world.tally.notes


# --- data


@pytest.mark.parametrize("shards", [(10_000, 1000, 1000), (20_000, 200), (7,), (5, 3, 1, 90)])
def test_shards_of_any_size_are_dealt_epoch_after_epoch(shards: tuple[int, ...]) -> None:
    world, _ = checked_world(trainers=3, steps=40, shards=shards, even=True)
    assert world.run_steps(40, 1200)


def test_work_does_not_pile_up_while_no_round_can_begin() -> None:
    """Rule 22: even a raised quota never exceeds the batch."""
    world, _ = checked_world(trainers=3, steps=20)
    world.run_steps(3)
    for relay in relays(world):
        relay.kill()
    world.wait(1800)
    assert "no relay" in state(world).waiting
    held = [member.done_samples for member in state(world).trainers()]
    assert len(held) == 3
    assert max(held) <= world.recipe.target_batch
