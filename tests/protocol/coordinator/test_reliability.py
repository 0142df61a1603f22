"""A machine's deliveries decide whether it is on probation or in quarantine."""

from itertools import pairwise

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.timing import QUARANTINES
from tests.protocol.coordinator.scenes import four
from tests.protocol.coordinator.stage import UNIT, Stage, Trainer


def test_one_slow_unit_does_not_change_a_pace() -> None:
    stage = Stage(batch=400)
    stage.relay()
    ann = stage.trainer("ann")
    for seconds in (1, 1, 1, 1, 10):
        stage.wait(seconds)
        stage.compute(ann)
    assert stage.member(ann).reliability.rate == pytest.approx(UNIT, rel=0.3)


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
