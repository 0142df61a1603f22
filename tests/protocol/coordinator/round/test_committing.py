"""From the last span to the next round: what is exact, what is carried, and a database that says no."""

from itertools import pairwise
from typing import Literal

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from peer_agent.protocol.coordinator.round.committing import PERSIST_PAUSE_S, PERSIST_PAUSES_S
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Included
from tests.protocol.coordinator.stage import TOKENS, UNIT, Stage, Trainer, sent


def offered(**said: float) -> tuple[Stage, list[Trainer]]:
    """A reduce in which the last of four offered as told."""
    stage = Stage(batch=32)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan")]
    stage.accumulate()
    for trainer in trainers[:3]:
        stage.offer(trainer)
    stage.offer(trainers[3], **said)
    assert stage.state.phase is Phase.REDUCE
    return stage, trainers


# --- exact


def test_a_step_is_exact_with_fresh_whole_untouched_work() -> None:
    stage, _ = offered()
    stage.reduce()
    assert stage.persist().exact


def test_a_clipped_step_is_not_exact() -> None:
    stage, trainers = offered(norm=1e6)
    stage.reduce()
    record = stage.persist()
    assert not record.exact
    assert [entry.peer for entry in record.contributions if entry.clipped] == [trainers[3].peer]


def test_a_step_with_stale_work_is_not_exact() -> None:
    stage, trainers = offered()
    stage.lose.add((trainers[0].peer, m.Commit))
    stage.reduce([0])
    stage.persist()
    old = trainers[0]
    assert old.done
    stage.lose.clear()
    old.step, old.index = 1, 1
    stage.report(old)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    assert any(done.base == 0 for offer in stage.round.offers.values() for done in offer.units)
    stage.reduce()
    assert not stage.persist().exact


def test_a_step_that_left_somebody_out_somewhere_is_not_exact() -> None:
    stage, _ = offered()
    (span,) = stage.spans()
    parts = (Included(span.first, 2, (0, 1, 2)), Included(2, span.stop, (0, 1, 2, 3)))
    stage.span_done(span, included=parts)
    assert not stage.persist().exact


# --- carried


def partly(stage: Stage, slot: int) -> None:
    """The round's span with this slot in the second half only."""
    (span,) = stage.spans()
    others = tuple(number for number in range(len(stage.round.slots)) if number != slot)
    everybody = tuple(range(len(stage.round.slots)))
    stage.span_done(span, included=(Included(span.first, 4, others), Included(4, span.stop, everybody)))


def test_what_was_left_out_in_a_chunk_is_carried_and_what_was_whole_is_not() -> None:
    stage, trainers = offered()
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
    assert not stage.persist().exact, "a part of it was computed for the step before"
    assert stage.member(trainers[0]).carried == 0, "all of it is in the update"


def test_nobody_carries_more_than_was_left_out() -> None:
    stage, trainers = offered()
    weight = trainers[0].samples * TOKENS
    partly(stage, 0)
    stage.persist()
    stage.accumulate()
    tokens = trainers[0].samples * TOKENS
    weights = (m.Weight(0, 8, tokens + weight + 1),)
    answer = stage.offer(trainers[0], weights=weights, loss_tokens=tokens)
    assert [notice.code for notice in sent(answer, m.Notice)] == ["E219"]  # type: ignore[attr-defined]


# --- the database


def test_a_database_that_says_no_is_asked_again_after_pauses_that_double_and_never_at_once() -> None:
    """Today each refusal was answered with the next question at once, until Python's stack was full."""
    stage, _ = offered()
    stage.reduce()
    asked = []
    for _ in range(2000):
        answer = stage.take(e.Persisted("failed"))
        assert not any(isinstance(command, e.Persist) for command in answer)
        while not any(isinstance(command, e.Persist) for command in stage.wait(0.25)):
            assert stage.now < 10**6
        asked.append(stage.now)
        if len(asked) > 12:
            break
    gaps = [late - early for early, late in pairwise(asked)]
    assert gaps[0] == pytest.approx(2 * PERSIST_PAUSE_S, abs=0.3)
    assert gaps[-1] == pytest.approx(PERSIST_PAUSES_S, abs=0.3)
    assert all(late >= early - 0.3 for early, late in pairwise(gaps))
    assert stage.persist().step == 1


def test_nobody_is_told_of_a_step_before_the_database_has_it() -> None:
    stage, trainers = offered()
    stage.reduce()
    stage.take(e.Persisted("failed"))
    stage.wait(30)
    assert sent(stage.said, m.Commit) == []
    stage.persist()
    assert all(len(sent(stage.said, m.Commit, trainer.peer)) == 1 for trainer in trainers)


def test_whoever_lost_the_claim_stands_back() -> None:
    stage, _ = offered()
    stage.reduce()
    assert stage.take(e.Persisted("stale")) == [e.Abdicate()]


def test_a_second_answer_of_the_database_changes_nothing() -> None:
    stage, _ = offered()
    stage.reduce()
    stage.persist()
    assert stage.take(e.Persisted("committed", stage.state.sealed)) == []
    assert stage.state.step == 1


# --- leases afterwards


def test_a_ban_ends_leases_at_once_and_a_lost_session_after_some_rounds() -> None:
    stage, trainers = offered()
    stage.reduce()
    stage.persist()
    stage.wait(2)
    banned, lost, *rest = trainers
    leases = stage.state.leases
    assert leases.outstanding(banned.accumulator)
    assert leases.outstanding(lost.accumulator)
    stage.take(e.Lost(banned.peer, banned=True))
    stage.take(e.Lost(lost.peer))
    assert leases.outstanding(banned.accumulator) == 0
    assert leases.outstanding(lost.accumulator)
    for _ in range(GRACE_ROUNDS):
        assert leases.outstanding(lost.accumulator)
        stage.commit(*rest)
    assert leases.outstanding(lost.accumulator) == 0


def test_what_a_banned_machine_offered_is_left_out_of_the_open_round() -> None:
    stage, trainers = offered()
    stage.take(e.Lost(trainers[3].peer, banned=True))
    assert stage.round.dropped == {3}
    stage.reduce([3])
    record = stage.persist()
    assert trainers[3].peer not in {entry.peer for entry in record.contributions}
    assert stage.state.leases.outstanding(trainers[3].accumulator) == 0, "and its units come back"


def test_every_unit_is_used_returned_leased_or_recorded_as_lost() -> None:
    stage, trainers = offered()
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
