"""No peer's claims can stop a run. What a peer delivers decides whether it counts, is awaited or sits out."""

from itertools import pairwise

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.reliability import QUARANTINES
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.counts import NEWCOMER_S, SILENT_S
from tests.protocol.coordinator.scenes import four
from tests.protocol.coordinator.stage import UNIT, Stage, Trainer, notes, sent


@pytest.mark.parametrize("same_person", [False, True])
@pytest.mark.parametrize("worked_before", [False, True])
def test_machine_that_only_heartbeats_costs_no_more_than_a_wait(same_person: bool, worked_before: bool) -> None:
    stage, honest, hung = four(same_person=same_person)
    for _ in range(5 if worked_before else 0):
        stage.commit(*honest, hung)
    took = []
    for _ in range(6):
        begun = stage.now
        stage.commit(*honest)
        took.append(stage.now - begun)
    assert max(took) < 2 * SILENT_S
    assert took[-1] <= 8, "once it is known to be silent, nothing is expected of it"


def test_who_is_silent_is_back_with_its_first_delivered_unit() -> None:
    stage, honest, hung = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, hung)
    for _ in range(12):
        stage.commit(*honest)
    member = stage.member(hung)
    assert member.reliability.is_silent
    assert not member.counted[1]
    stage.compute(hung)
    assert not member.reliability.is_silent
    assert member.counted[1]


def test_a_newcomer_gets_one_unit_and_ten_minutes() -> None:
    stage, honest, _ = four(same_person=False)
    for _ in range(2):
        stage.commit(*honest)
    newcomer = stage.trainer("new")
    stage.wait(2)
    assert (len(newcomer.undone), newcomer.quota) == (1, UNIT)
    stage.wait(NEWCOMER_S - 60)
    assert not stage.member(newcomer).reliability.is_silent
    stage.wait(90)
    assert stage.member(newcomer).reliability.is_silent
    stage.compute(newcomer)
    stage.wait(2)
    assert len(newcomer.undone) > 1


@pytest.mark.parametrize("claims", [{"loss_tokens": 10**12, "loss_sum": 1e15}, {"undone": 10**12}])
def test_no_claim_makes_a_machine_faster_than_it_delivers(claims: dict[str, float]) -> None:
    stage, honest, liar = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, liar)
    for _ in range(4):
        stage.report(liar, **claims)
        stage.wait(1)
        stage.report(liar, **claims)
        stage.commit(*honest)
    assert all(stage.member(trainer).share <= 48 for trainer in honest)
    assert stage.state.step == 7


def test_one_slow_unit_does_not_change_a_pace() -> None:
    stage = Stage(batch=400)
    stage.relay()
    ann = stage.trainer("ann")
    for seconds in (1, 1, 1, 1, 10):
        stage.wait(seconds)
        stage.compute(ann)
    assert stage.member(ann).reliability.rate == pytest.approx(UNIT, rel=0.3)


def test_quotas_end_when_a_batch_takes_three_times_as_long() -> None:
    stage, honest, gone = four(same_person=False)
    for _ in range(5):
        stage.commit(*honest, gone)
    usual = stage.state.accumulated[-1]
    alone = honest[0]
    begun = stage.now
    while stage.state.phase is Phase.ACCUMULATE:
        stage.wait(0.5)
        stage.compute(alone)
        assert stage.now - begun < SILENT_S, "not only when the others are silent"
    assert alone.samples >= 48, "it made the batch by itself"
    assert stage.now - begun >= 3 * usual


def test_work_clock_stops_in_a_round_and_at_the_quota() -> None:
    stage, honest, _ = four(same_person=False)
    stage.accumulate(*honest)
    reliability = stage.member(honest[0]).reliability
    worked = reliability.unit.elapsed_s
    assert not reliability.unit.is_running
    stage.wait(3)
    assert reliability.unit.elapsed_s == worked
    stage.reduce() if stage.state.phase is Phase.REDUCE else stage.offers(*honest)
    stage.reduce()
    stage.persist()
    resting = honest[1]
    stage.compute(resting, 100)
    assert resting.samples >= resting.quota
    assert stage.member(resting).reliability.unit.is_running is False


# --- quarantine


def damaged(stage: Stage, trainers: list[Trainer], culprit: Trainer, unit_s: float = 16.0) -> None:
    """Run a step in which a reducer refuses the culprit's gradient, if the culprit takes part."""
    stage.accumulate(*trainers, unit_s=unit_s)
    stage.offers(*trainers)
    stage.close()
    slots = [i for i, slot in enumerate(stage.round.slots) if slot.peer == culprit.peer]
    for slot in slots:
        refused = m.SlotRefused(**stage.place(), slot=slot, chunk=0, code="E211")
        stage.say(stage.spans()[0].reducer, refused)
    stage.reduce(slots)
    stage.persist()


def test_refused_work_costs_one_four_and_sixteen_rounds() -> None:
    stage, honest, culprit = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, culprit)
    refused_in = []
    for number in range(60):
        before = stage.member(culprit).reliability.refusals.level
        damaged(stage, [*honest, culprit], culprit)
        if stage.member(culprit).reliability.refusals.level > before:
            refused_in.append(number)
    gaps = [later - early - 1 for early, later in pairwise(refused_in)]
    assert gaps[:3] == [rounds for rounds, _ in QUARANTINES]
    assert gaps[3:] == [16] * len(gaps[3:])


def test_repeated_refusals_cost_a_minute_even_with_short_rounds() -> None:
    """A penalty counted only in rounds would be over too soon: sixteen rounds may take just five seconds."""
    stage, honest, culprit = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, culprit)
    refused_at = []
    while stage.now < 1400:
        before = stage.member(culprit).reliability.refusals.level
        damaged(stage, [*honest, culprit], culprit, unit_s=0.25)
        if stage.member(culprit).reliability.refusals.level > before:
            refused_at.append(stage.now)
    gaps = [later - early for early, later in pairwise(refused_at)]
    assert gaps[0] < 5
    (_, _), (_, second_s), (_, third_s) = QUARANTINES
    assert second_s <= gaps[1] < second_s + 5
    assert gaps[2:]
    assert all(third_s <= gap < third_s + 5 for gap in gaps[2:])


def test_refused_offer_counts_as_refused_work_and_pauses_leases() -> None:
    stage, honest, liar = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, liar)
    stage.accumulate(*honest, liar)
    stage.offer(liar, loss_tokens=10**9)
    assert stage.member(liar).reliability.refusals.level == 1
    stage.offers(*honest)
    stage.reduce()
    stage.persist()
    stage.wait(3)
    assert liar.undone == []
    stage.commit(*honest)
    stage.wait(3)
    assert liar.undone != [], "after one round it is leased again"


def test_trainer_without_an_offer_is_on_probation() -> None:
    stage, honest, mute = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, mute)
    stage.accumulate(*honest, mute)
    stage.offers(*honest)
    stage.close()
    stage.reduce()
    stage.persist()
    assert not stage.member(mute).counted[1]
    stage.accumulate(*honest)
    assert mute.peer not in stage.round.persons
    stage.offers(*honest)
    stage.reduce()
    stage.persist()
    assert not stage.member(mute).counted[1], "it has delivered nothing yet"
    stage.wait(2)
    stage.compute(mute)
    assert stage.member(mute).counted[1]


def test_quarantine_is_overridden_where_a_batch_needs_it() -> None:
    stage = Stage(batch=24)
    stage.relay()
    alone = stage.trainer("ann")
    stage.commit()
    stage.accumulate()
    stage.offer(alone, loss_tokens=10**9)
    stage.close()
    stage.wait(2)
    assert alone.undone
    assert stage.commit().step == 2


def _at_work_between_rounds(stage: Stage, boaster: Trainer, seconds: float) -> list[float]:
    """Let a machine finish its leased units instantly but offer nothing. Return how long the other machines work
    between rounds.
    """
    pauses, end, since = [], stage.now + seconds, stage.now
    while stage.now < end:
        before = stage.state.phase
        stage.compute(boaster, 100)
        stage.wait(0.5)
        if before is Phase.ACCUMULATE and stage.state.phase is not before:
            pauses.append(stage.now - since)
        elif stage.state.phase is Phase.ACCUMULATE and before is not Phase.ACCUMULATE:
            since = stage.now
    return pauses


def test_boaster_without_offers_leaves_newcomers_time_for_a_unit() -> None:
    """Newcomers of unknown speed are not expected to fill the batch. Each cut costs them the unit in progress."""
    stage = Stage(batch=16)
    stage.relay()
    boaster, newcomer = stage.trainer("bob"), stage.trainer("ann")
    pauses = _at_work_between_rounds(stage, boaster, 600)
    assert len(pauses) >= 4
    assert pauses[-1] >= 30, "longer and longer"
    assert newcomer.undone, "it is leased work meanwhile"


def test_whoever_is_all_there_is_is_called_back_at_once() -> None:
    stage = Stage(batch=16)
    stage.relay()
    pauses = _at_work_between_rounds(stage, stage.trainer("bob"), 600)
    assert stage.state.rounds >= 5
    assert max(pauses) <= 4


def test_a_session_does_not_wash_off_what_its_machine_did() -> None:
    stage, honest, liar = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, liar)
    stage.accumulate(*honest, liar)
    stage.offer(liar, loss_tokens=10**9)
    stage.handle(e.Lost(liar.peer))
    stage.trainer("zoe")
    assert stage.member(liar).reliability.refusals.level == 1
    assert stage.state.in_quarantine(stage.member(liar).reliability)


def test_good_work_makes_up_for_what_was_refused() -> None:
    stage, honest, culprit = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, culprit)
    stage.member(culprit).reliability.refusals.level = 2
    stage.commit(*honest, culprit)
    assert stage.member(culprit).reliability.refusals.level == 1


# --- sums


def test_the_sums_are_those_of_the_members() -> None:
    stage, honest, other = four(same_person=False)
    everybody = [*honest, other]

    def check() -> None:
        state = stage.state
        ready = [p for p in state.members.values() if p.trains and p.reconciled and p.step == state.step]
        assert state.ready_count == len(ready) == len(state.ready())
        assert state.awake_count == len(state.awake())
        assert state.awake_samples == sum(p.done_samples for p in state.awake())
        assert all(p.done_samples == sum(unit.samples for unit in p.done) for p in state.members.values())

    for turn in range(4):
        stage.accumulate(*everybody)
        check()
        stage.offers(*everybody)
        stage.reduce()
        check()
        stage.persist()
        check()
        stage.handle(e.Lost(everybody[turn].peer, banned=turn % 2 == 0))
        check()
        stage.wait(1)
        stage.hello(everybody[turn])
        check()
    assert "evicted" not in notes(stage.said)
    assert sent(stage.said, m.Commit)
