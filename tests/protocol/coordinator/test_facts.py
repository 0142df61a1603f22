"""Facts known to a host after a restart. The site and the simulator use the same code."""

import pytest

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Included, Record, Unit
from tests.protocol.coordinator.scenes import come_back, left_out, offers_carried, restarted
from tests.protocol.coordinator.stage import TOKENS, Stage, sealed


def test_honest_carried_work_is_taken_after_a_restart() -> None:
    stage, trainers, weight = left_out(0)
    after = restarted(stage)
    for trainer in trainers:
        come_back(after, trainer, carried=weight if trainer is trainers[0] else 0)
    assert after.member(trainers[0]).carried == weight
    after.accumulate()
    assert offers_carried(after, trainers[0], weight) == []


def test_work_left_out_twice_adds_up_until_included_whole() -> None:
    stage, trainers, first = left_out(0, people=8)
    trainers[0].carried = first
    stage.accumulate()
    second = trainers[0].samples * TOKENS
    assert offers_carried(stage, trainers[0], first) == []
    stage.offers(*trainers[1:])
    (span,) = stage.spans()
    stage.span_done(span, included=(Included(0, 4, tuple(range(1, 8))), Included(4, 8, tuple(range(8)))))
    stage.persist()
    after = restarted(stage)
    come_back(after, trainers[0], carried=10**9)
    assert after.member(trainers[0]).carried == first + second
    trainers[0].carried = 0
    stage.commit()
    later = restarted(stage)
    come_back(later, trainers[0], carried=10**9)
    assert later.member(trainers[0]).carried == 0


def test_who_votes_is_known_after_a_restart() -> None:
    stage, _, _ = left_out(0)
    assert restarted(stage).state.recent == dict.fromkeys(("ann", "bob", "cem", "dan"), 1)


def test_the_last_record_is_there_to_be_said_again() -> None:
    stage, _, _ = left_out(0)
    after = restarted(stage)
    assert after.state.sealed == sealed(stage.records[-1])
    assert (after.state.phase, after.state.started) == (Phase.ACCUMULATE, True)


def test_last_loss_and_error_feedback_survive_a_restart() -> None:
    stage = Stage(batch=16, values={"codec_down": "int8"})
    stage.relay()
    stage.trainer("ann")
    stage.commit()
    after = restarted(stage, recipe=stage.state.recipe).state
    assert after.loss == stage.state.loss == 2.5
    assert 0 < stage.state.feedback_norm <= after.feedback_norm < 0.2


# --- many epochs


def epochs(count: int, settled: list[Unit]) -> Stage:
    marks = [Mark(epoch, 0, 10_000) for epoch in range(count)] + [Mark(count, 0, 400)]
    return Stage(marks=marks, settled=settled, index=5, step=5, fence=3)


def test_a_restart_in_epoch_97_leases_no_old_epoch_again() -> None:
    whole = [Unit(epoch, 0, 0, 10_000) for epoch in range(97)]
    stage = epochs(97, [*whole, Unit(97, 0, 0, 100)])
    assert stage.state.leases.sources[0].epoch == 97
    assert stage.state.leases.orphans == [Unit(97, 0, 100, 400)]


def test_what_an_old_epoch_left_over_comes_back() -> None:
    whole = [Unit(epoch, 0, 0, 10_000) for epoch in range(1, 3)]
    stage = epochs(3, [Unit(0, 0, 0, 40), Unit(0, 0, 44, 10_000), *whole])
    assert stage.state.leases.orphans == [Unit(0, 0, 40, 44), Unit(3, 0, 0, 400)]
    assert stage.state.leases.claim(AccumulatorId("ab" * 16), [Unit(0, 0, 40, 44)])


@pytest.mark.parametrize("cut", [1, 3, 7])
def test_ranges_say_the_same_as_their_units(cut: int) -> None:
    units = [Unit(0, 0, start, start + cut) for start in range(0, 70, cut)]
    stop = units[-1].stop
    assert epochs(1, units).state.leases.orphans == epochs(1, [Unit(0, 0, 0, stop)]).state.leases.orphans


def test_a_record_is_what_it_was_when_it_is_read_again() -> None:
    stage, _, _ = left_out(0)
    assert isinstance(stage.records[-1], Record)
    assert restarted(stage).state.inclusions[-1] == stage.state.inclusions[-1]
