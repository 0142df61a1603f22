"""Staleness 1: the next batch is computed during a round and averaged after the commit (rules 10 and 22)."""

from typing import Literal

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.replicas import await_replicas
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.batch import usual_s
from peer_agent.protocol.coordinator.workers.counts import for_later
from peer_agent.protocol.timing import LONGEST_S, REPORT_S, ROUND_TRIP_S, usual_wait_s
from tests.protocol.coordinator.scenes import NAMES, come_back, restarted
from tests.protocol.coordinator.stage import UNIT, Stage, Trainer, notes, sent


def some(count: int = 3, *, staleness: Literal[0, 1] = 1) -> tuple[Stage, list[Trainer]]:
    """Return a run after two updates, with known speeds. Each trainer computes two units per batch."""
    stage = Stage(batch=2 * UNIT * count, staleness=staleness)
    stage.relay()
    trainers = [stage.trainer(name) for name in NAMES[:count]]
    for _ in range(2):
        stage.commit(*trainers)
    return stage, trainers


def go_on(stage: Stage, trainer: Trainer, units: int = 1) -> None:
    """Let a trainer finish and report more units after its offer, one per second."""
    for _ in range(units):
        stage.wait(1.0)
        trainer.done[trainer.undone.pop(0)] = trainer.step
        stage.report(trainer)


def overlapped(units: int = 2, count: int = 3) -> tuple[Stage, list[Trainer]]:
    """Return a round whose averages are complete. Each trainer has meanwhile computed more units."""
    stage, trainers = some(count)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    assert stage.state.phase is Phase.REDUCE
    for trainer in trainers:
        go_on(stage, trainer, units)
    stage.gathers = False
    stage.reduce()
    return stage, trainers


def commits(stage: Stage) -> None:
    """Commit the step without delivering the commit to any trainer."""
    for trainer in stage.trainers.values():
        stage.lose.add((trainer.peer, m.Commit))
    stage.gathered(next(iter(stage.trainers)))
    assert stage.state.phase is Phase.COMMIT
    stage.persist()


def applies(stage: Stage, trainer: Trainer) -> list[e.Command]:
    return stage.apply(trainer, stage.records[-1])


def test_work_in_a_round_counts_next_and_the_cut_waits_for_all() -> None:
    stage, trainers = overlapped()
    assert [for_later(stage.state, stage.member(trainer)) for trainer in trainers] == [2 * UNIT] * 3
    commits(stage)
    assert stage.state.phase is Phase.ACCUMULATE
    for trainer in trainers[:2]:
        assert not sent(applies(stage, trainer), m.Cut)
    (cut,) = sent(applies(stage, trainers[2]), m.Cut)
    assert stage.state.awake_samples == 3 * 2 * UNIT
    assert set(stage.round.persons) == {trainer.peer for trainer in trainers}
    assert cut.step == stage.state.step  # type: ignore[attr-defined]


def test_without_it_a_word_during_a_round_changes_nothing() -> None:
    stage, trainers = some(staleness=0)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    before = dict(stage.member(trainers[0]).done)
    go_on(stage, trainers[0])
    assert stage.member(trainers[0]).done == before


def test_full_batch_still_waits_for_the_last_trainer_to_apply() -> None:
    """If the next round began earlier, that trainer's work from this round would be too old."""
    stage, trainers = overlapped(units=3)
    commits(stage)
    for trainer in trainers[:2]:
        assert not sent(applies(stage, trainer), m.Cut)
    assert stage.state.awake_samples >= stage.state.recipe.target_batch
    assert stage.state.replicas.peers == {trainers[2].peer}
    assert sent(applies(stage, trainers[2]), m.Cut)


def test_absent_trainer_is_awaited_as_usual_and_counts_as_late() -> None:
    stage, trainers = overlapped(units=3)
    commits(stage)
    begun = stage.now
    for trainer in trainers[:2]:
        applies(stage, trainer)
    while stage.state.phase is Phase.ACCUMULATE and stage.now < begun + 60:
        stage.wait(0.25)
    waited = stage.now - begun
    assert 1.0 <= waited <= ROUND_TRIP_S + 0.25
    assert trainers[2].peer not in stage.round.persons
    assert stage.state.timings.replicas[-1] == pytest.approx(waited)
    assert stage.state.replicas.peers == set()


def test_whoever_is_gone_is_not_waited_for() -> None:
    stage, trainers = overlapped(units=3)
    commits(stage)
    for trainer in trainers[:2]:
        applies(stage, trainer)
    assert sent(stage.handle(e.Lost(trainers[2].peer)), m.Cut)


def test_whoever_the_round_was_made_without_is_not_waited_for() -> None:
    stage, trainers = some(4)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    stage.say(stage.spans()[0].reducer, m.SlotRefused(**stage.place(), slot=3, chunk=0, code="E220"))
    assert stage.round.dropped == {3}
    stage.gathers = False
    stage.reduce([3])
    commits(stage)
    assert stage.state.replicas.peers == {trainer.peer for trainer in trainers if trainer is not trainers[3]}


def test_trainer_that_sat_out_is_awaited_for_the_next_round() -> None:
    stage, trainers = overlapped()
    peers, round_ = [trainer.peer for trainer in trainers], stage.state.round
    assert round_ is not None
    del round_.offers[peers[2]]
    round_.left_out[peers[2]] = "its link needs 9.0 s for a round that the others make in 3.0 s"
    await_replicas(stage.state, round_)
    assert stage.state.replicas.peers == set(peers)


def test_whoever_offered_and_was_given_no_slot_is_not_waited_for() -> None:
    stage, trainers = some(4)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    stage.round.slots = stage.round.slots[:3]
    await_replicas(stage.state, stage.round)
    assert stage.state.replicas.peers == {slot.peer for slot in stage.round.slots}


def test_long_plan_is_awaited_until_its_averages_are_everywhere() -> None:
    stage, _ = overlapped(units=3)
    assert stage.round.plan is not None
    stage.round.planned_at = stage.now
    stage.round.plan = replace(stage.round.plan, duration_s=40.0)
    commits(stage)
    assert stage.state.replicas.until == pytest.approx(stage.now + 60.0)


def test_waits_follow_what_was_seen() -> None:
    assert usual_wait_s([], REPORT_S) == ROUND_TRIP_S
    assert usual_wait_s([0.1] * 5, REPORT_S) == REPORT_S
    assert usual_wait_s([2.0, 2.0, 2.5, 1.5], REPORT_S) == pytest.approx(4.0)
    assert usual_wait_s([50.0, 90.0, 70.0], REPORT_S) == LONGEST_S


def test_void_round_keeps_both_sums_for_the_next_cut() -> None:
    stage, trainers = some()
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    for trainer in trainers:
        go_on(stage, trainer, 2)
    while "void" not in notes(stage.wait(1.0)):
        assert stage.state.void_rounds == 0
    assert stage.state.phase is Phase.OFFER, "both together are more than a batch"
    stage.offers(*trainers)
    assert sum(done.unit.samples for offer in stage.round.offers.values() for done in offer.units) == 48


def test_units_are_leased_in_the_round_for_the_one_after() -> None:
    stage, trainers = some()
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    ann = trainers[0]
    member = stage.member(ann)
    assert member.reliability.unit.is_running
    while for_later(stage.state, member) < member.quota:
        go_on(stage, ann)
    assert ann.undone, "and for some time beyond its quota"
    assert member.reliability.unit.is_running is False, "it rests there"


def test_trainer_claiming_work_beyond_its_quota_gets_no_more() -> None:
    stage, trainers = some()
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    ann = trainers[0]
    for _ in range(50):
        if ann.undone:
            go_on(stage, ann)
    offered = sum(done.unit.samples for done in stage.round.offers[ann.peer].units)
    member = stage.member(ann)
    assert stage.state.leases.held_samples[ann.accumulator] <= offered + member.quota + 2 * member.share + UNIT


def test_a_batch_usually_takes_from_cut_to_cut() -> None:
    """Work overlaps the round, so a batch may already be full at the commit. Its usual time is therefore measured from
    cut to cut.
    """
    stage, trainers = overlapped()
    begun = stage.round.cut_at
    commits(stage)
    for trainer in trainers:
        applies(stage, trainer)
    stage.lose.clear()
    stage.offers(*trainers)
    stage.gathers = True
    stage.reduce()
    second = stage.round.cut_at
    stage.persist()
    assert stage.state.timings.batches[-1] == pytest.approx(second - begun)
    assert second - begun > 1.0
    assert usual_s(stage.state) > 1.0


def test_pace_is_measured_across_rounds_for_a_long_unit() -> None:
    stage, trainers = some()
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    ann = trainers[0]
    stage.member(ann).reliability.seconds.clear()
    stage.gathers = False
    stage.wait(3.0)
    stage.reduce()
    commits(stage)
    stage.wait(3.0)
    ann.done[ann.undone.pop(0)] = ann.step
    applies(stage, ann)
    (seconds,) = stage.member(ann).reliability.seconds
    assert seconds * UNIT == pytest.approx(6.0, abs=1.5)


def test_stalled_round_is_noticed_while_trainers_compute() -> None:
    stage, trainers = some()
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    for _ in range(12):
        stage.wait(1.0)
        if trainers[0].undone:
            trainers[0].done[trainers[0].undone.pop(0)] = trainers[0].step
        stage.report(trainers[0])
    assert "averages" in stage.state.waiting


def test_offer_one_step_old_is_taken_and_older_ones_lose_leases() -> None:
    stage, trainers = overlapped(count=4)
    commits(stage)
    for trainer in trainers:
        applies(stage, trainer)
    old, *others = trainers
    held = set(old.done)
    answer = stage.offer(old, units=tuple(m.DoneUnit(unit, stage.state.step - 2) for unit in sorted(held)))
    assert [notice.code for notice in sent(answer, m.Notice)] == ["E206"]  # type: ignore[attr-defined]
    assert "returned" in notes(answer)
    assert held <= set(stage.state.leases.returned)
    stage.offers(*others)
    assert {done.base for offer in stage.round.offers.values() for done in offer.units} == {stage.state.step - 1}


def test_what_comes_back_for_its_age_is_told_of() -> None:
    stage, trainers = overlapped()
    commits(stage)
    applies(stage, trainers[0])
    units = tuple(trainers[0].done)
    answer = stage.say(trainers[0].peer, m.UnitsReturned(run=stage.state.run, units=units, reason="stale"))
    assert notes(answer) == ["returned"]
    assert set(units) <= set(stage.state.leases.returned)


def test_hello_in_a_round_names_both_sums_and_loses_nothing() -> None:
    stage, trainers = overlapped()
    ann = trainers[0]
    stage.handle(e.Lost(ann.peer))
    stage.hello(ann)
    assert for_later(stage.state, stage.member(ann)) == 2 * UNIT
    assert stage.state.leases.holds(ann.accumulator, ann.done)
    commits(stage)
    assert set(stage.member(ann).done) < set(ann.done)
    assert len(stage.member(ann).done) == 2


def test_new_host_waits_a_little_for_the_last_contributors() -> None:
    """Each contributor may have work for two batches. If the round began without some of them, their work would become
    too old.
    """
    stage, trainers = overlapped(units=3)
    after = restarted(stage, staleness=1)
    for trainer in trainers[:2]:
        come_back(after, trainer)
        after.report(trainer)
    assert after.state.awake_samples >= after.state.recipe.target_batch
    assert not sent(after.said, m.Cut)
    come_back(after, trainers[2])
    assert sent(after.report(trainers[2]), m.Cut)


def test_a_new_host_does_not_wait_for_who_stays_away() -> None:
    stage, trainers = overlapped(units=3)
    after = restarted(stage, staleness=1)
    for trainer in trainers[:2]:
        come_back(after, trainer)
    after.wait(ROUND_TRIP_S)
    assert after.state.phase is Phase.OFFER
    assert list(after.state.timings.replicas) == [], "this says nothing of how long updates take"
