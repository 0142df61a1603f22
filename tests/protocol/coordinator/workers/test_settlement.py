"""The end of a lease: in an update, when it is returned, or as the open round decides."""

from typing import Literal

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.coordinator.workers.settlement import end_leases
from tests.protocol.coordinator.scenes import come_back, left_out, partly, reducing, restarted
from tests.protocol.coordinator.stage import TOKENS, UNIT, Stage, notes, sealed

# --- in an update


def test_chunks_left_out_are_carried_and_whole_gradients_are_not() -> None:
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


def test_what_is_carried_by_who_is_away_is_known_too() -> None:
    stage, (ann, *_), _ = reducing()
    weight = ann.samples * TOKENS
    stage.handle(e.Lost(ann.peer))
    partly(stage, 0)
    stage.persist()
    assert stage.state.departed[ann.peer].carried == weight


def test_work_in_an_update_is_no_longer_done() -> None:
    stage, (ann, *_), _ = reducing()
    stage.lose.add((ann.peer, m.Commit))
    stage.reduce()
    assert stage.member(ann).done
    stage.persist()
    assert (stage.member(ann).done, stage.member(ann).done_samples) == ({}, 0)


def test_included_work_removes_a_strike_unless_it_was_dropped() -> None:
    stage, trainers, _ = reducing()
    for trainer in trainers:
        stage.member(trainer).reliability.refusals.level = 2
    stage.round.dropped = {0}
    stage.reduce()
    stage.persist()
    assert [stage.member(trainer).reliability.refusals.level for trainer in trainers] == [2, 1, 1, 1]


# --- given back


def test_what_was_offered_is_withdrawn_with_its_leases() -> None:
    stage = Stage(batch=16)
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    stage.accumulate()
    stage.offer(ann)
    assert stage.state.phase is Phase.OFFER
    assert end_leases(stage.state, ann.accumulator, ann.done) == ann.samples
    assert stage.round.offers == {}
    assert stage.round.waiting == {bob.peer}


def test_units_returned_in_a_plan_wait_for_its_outcome() -> None:
    for without in ([0], []):
        stage, (ann, *_), _ = reducing()
        units = tuple(ann.done)
        stage.say(ann.peer, m.UnitsReturned(run=stage.state.run, units=units, reason="stale"))
        assert stage.state.leases.holds(ann.accumulator, units), "they may be in the update already"
        assert stage.state.leases.returned == []
        stage.reduce(without)
        assert stage.round.record is not None
        stage.handle(e.Persisted("committed", sealed(stage.round.record)))
        assert not stage.state.leases.holds(ann.accumulator, units)
        assert sorted(stage.state.leases.returned) == (sorted(units) if without else [])


def test_leases_outlive_a_lost_session_by_some_rounds() -> None:
    stage, (lost, *rest), _ = reducing()
    stage.reduce()
    stage.persist()
    stage.wait(2)
    leases = stage.state.leases
    stage.handle(e.Lost(lost.peer))
    for _ in range(GRACE_ROUNDS):
        assert leases.outstanding(lost.accumulator)
        assert "returned" not in notes(stage.said)
        stage.commit(*rest)
    assert leases.outstanding(lost.accumulator) == 0
    assert "returned" in notes(stage.said)
    assert lost.accumulator not in stage.state.holders


def test_banned_machines_offer_is_left_out_of_the_open_round() -> None:
    stage, trainers, _ = reducing()
    stage.handle(e.Lost(trainers[3].peer, banned=True))
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


def test_unclaimed_units_come_back_only_after_some_commits() -> None:
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
