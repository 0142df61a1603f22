"""A machine counts while it delivers. The run's totals are the sums over its members."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.timing import NEWCOMER_S, SILENT_S
from tests.protocol.coordinator.scenes import four
from tests.protocol.coordinator.stage import UNIT, notes, sent


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
