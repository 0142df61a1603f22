"""How leases end: in an update, given back, or as the open round decides."""

from typing import Literal

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from tests.protocol.coordinator.scenes import come_back, left_out, partly, reducing, restarted
from tests.protocol.coordinator.stage import TOKENS, UNIT


def test_what_was_left_out_in_a_chunk_is_carried_and_what_was_whole_is_not() -> None:
    stage, trainers, _ = reducing()
    weight = trainers[0].samples * TOKENS
    partly(stage, 0)
    stage.persist()
    assert [stage.member(trainer).carried for trainer in trainers] == [weight, 0, 0, 0]
    trainers[0].carried = weight
    stage.accumulate()
    more = trainers[0].samples * TOKENS
    weights = (m.Weight(0, 4, weight + more), m.Weight(4, 8, more))
    stage.offer(trainers[0], weights=weights, loss_tokens=more)
    stage.offers(*trainers[1:])
    assert len(stage.round.slots) == 4
    stage.reduce()
    stage.persist()
    assert stage.member(trainers[0]).carried == 0, "all of it is in the update"


def test_leases_outlive_a_lost_session_by_some_rounds() -> None:
    stage, (lost, *rest), _ = reducing()
    stage.reduce()
    stage.persist()
    stage.wait(2)
    leases = stage.state.leases
    stage.take(e.Lost(lost.peer))
    for _ in range(GRACE_ROUNDS):
        assert leases.outstanding(lost.accumulator)
        stage.commit(*rest)
    assert leases.outstanding(lost.accumulator) == 0


def test_what_a_banned_machine_offered_is_left_out_of_the_open_round() -> None:
    stage, trainers, _ = reducing()
    stage.take(e.Lost(trainers[3].peer, banned=True))
    assert stage.round.dropped == {3}
    stage.reduce([3])
    record = stage.persist()
    assert trainers[3].peer not in {entry.peer for entry in record.contributions}
    assert stage.state.leases.outstanding(trainers[3].accumulator) == 0, "and its units come back"


def test_every_unit_is_used_returned_leased_or_recorded_as_lost() -> None:
    stage, trainers, _ = reducing()
    for turn in range(6):
        stage.reduce([turn % 2] if turn else ())
        stage.persist()
        culprit = trainers[turn % 4]
        stage.wait(1)
        for _ in range(3):
            reason: Literal["non_finite", "stale"] = "non_finite" if turn % 2 else "stale"
            returned = m.UnitsReturned(run=stage.state.run, units=tuple(culprit.undone[:1]), reason=reason)
            culprit.undone = culprit.undone[1:]
            stage.say(culprit.peer, returned)
        stage.accumulate()
        stage.offers(*trainers)
        stage.close()
    book = stage.state.leases
    used = sum(unit.samples for r in stage.records for entry in r.contributions for unit in entry.units)
    held = sum(unit.samples for units in book.held.values() for unit in units)
    loose = sum(unit.samples for unit in (*book.returned, *book.orphans))
    assert sum(book.granted.values()) == used + held + loose + book.lost_samples
    assert {name: sum(unit.samples for unit in units) for name, units in book.held.items()} == book.held_samples
    assert UNIT


def test_units_that_nobody_claims_come_back_after_some_commits_and_not_at_once() -> None:
    stage, trainers, _ = left_out(0)
    after = restarted(stage)
    orphans = sum(unit.samples for unit in after.state.leases.orphans)
    assert orphans
    away, *rest = trainers
    for trainer in rest:
        come_back(after, trainer, done={}, undone=[])
    for number in range(GRACE_ROUNDS):
        assert after.state.leases.orphans, f"after {number} commits"
        after.commit(*rest)
    assert after.state.leases.orphans == []
    claimed = after.state.leases
    assert claimed.returned or sum(claimed.held_samples.values())
    assert away
