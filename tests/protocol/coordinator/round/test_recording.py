"""The record of a round: whose work is in it, and whether the step is exact."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.log.records import Included
from tests.protocol.coordinator.scenes import left_out, offers_carried, reducing

# --- exact


def test_a_step_is_exact_with_fresh_whole_untouched_work() -> None:
    stage, *_ = reducing()
    stage.reduce()
    assert stage.persist().exact


def test_a_clipped_step_is_not_exact() -> None:
    stage, trainers, _ = reducing(norm=1e6)
    stage.reduce()
    record = stage.persist()
    assert not record.exact
    assert [entry.peer for entry in record.contributions if entry.clipped] == [trainers[3].peer]


def test_a_step_with_stale_work_is_not_exact() -> None:
    stage, trainers, _ = reducing()
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
    stage, *_ = reducing()
    (span,) = stage.spans()
    parts = (Included(span.first, 2, (0, 1, 2)), Included(2, span.stop, (0, 1, 2, 3)))
    stage.span_done(span, included=parts)
    assert not stage.persist().exact


def test_a_step_with_carried_work_is_not_exact() -> None:
    """A part of it was computed for the step before."""
    stage, trainers, weight = left_out(0)
    stage.accumulate()
    assert offers_carried(stage, trainers[0], weight) == []
    stage.offers(*trainers[1:])
    stage.reduce()
    assert not stage.persist().exact
