"""What a host knows after a restart: the same for the site and the simulator."""

from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.coordinator.facts import GRACE_ROUNDS
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Included, Record, Unit, digest_of
from tests.protocol.coordinator.stage import TOKENS, Stage, Trainer, sealed, sent


def restarted(stage: Stage, **facts: Any) -> Stage:
    """Another host, with what the database has of the first one's run."""
    head = stage.records[-1]
    marks = [Mark(*place, mark) for place, mark in stage.state.leases.reserved.items()]
    settled = [unit for record in stage.records for entry in record.contributions for unit in entry.units]
    given: dict[str, Any] = {
        "fence": stage.state.fence + 1,
        "index": head.index,
        "step": head.step,
        "digest": digest_of(sealed(head)),
        "marks": marks,
        "settled": settled,
        "last": [sealed(record) for record in stage.records[-16:]],
    }
    after = Stage(batch=stage.state.recipe.target_batch, **{**given, **facts})
    after.records = stage.records
    after.relay()
    return after


def come_back(stage: Stage, trainer: Trainer, **said: object) -> list[e.Command]:
    for name, value in said.items():
        setattr(trainer, name, value)
    stage.trainers[trainer.peer] = trainer
    return stage.hello(trainer)


def left_out(slot: int, people: int = 4) -> tuple[Stage, list[Trainer], int]:
    """A run in whose last update a slot was in half of the chunks. With the tokens that it carries."""
    stage = Stage(batch=8 * people)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan", "eva", "fay", "gus", "hal")[:people]]
    stage.accumulate()
    stage.offers(*trainers)
    weight = trainers[slot].samples * TOKENS
    (span,) = stage.spans()
    everybody = tuple(range(people))
    others = tuple(number for number in everybody if number != slot)
    stage.span_done(span, included=(Included(0, 4, others), Included(4, 8, everybody)))
    stage.persist()
    return stage, trainers, weight


def offers_carried(stage: Stage, trainer: Trainer, carried: int) -> list[str]:
    """Numbers of the errors that an offer with so many carried tokens in half of the chunks is answered with."""
    tokens = trainer.samples * TOKENS
    weights = (m.Weight(0, 4, tokens + carried), m.Weight(4, 8, tokens))
    answer = stage.offer(trainer, weights=weights, loss_tokens=tokens)
    return [notice.code for notice in sent(answer, m.Notice)]  # type: ignore[attr-defined]


def test_honest_carried_work_is_taken_after_a_restart() -> None:
    stage, trainers, weight = left_out(0)
    after = restarted(stage)
    for trainer in trainers:
        come_back(after, trainer, carried=weight if trainer is trainers[0] else 0)
    assert after.member(trainers[0]).carried == weight
    after.accumulate()
    assert offers_carried(after, trainers[0], weight) == []


def test_carried_work_is_believed_up_to_what_the_records_allow() -> None:
    stage, trainers, weight = left_out(0)
    after = restarted(stage)
    come_back(after, trainers[0], carried=10**9)
    come_back(after, trainers[1], carried=10**9)
    assert after.member(trainers[0]).carried == weight
    assert after.member(trainers[1]).carried == 0, "all of its work is in the update"
    stranger = Trainer("eve", "eve")
    come_back(after, stranger, carried=10**9, step=1, index=1)
    assert after.member(stranger).carried == 0


def test_what_was_left_out_twice_adds_up_and_a_whole_inclusion_ends_it() -> None:
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


def test_a_lost_session_keeps_what_is_carried() -> None:
    stage, trainers, weight = left_out(0)
    stage.take(e.Lost(trainers[0].peer))
    stage.hello(trainers[0])
    assert stage.member(trainers[0]).carried == weight


def test_who_votes_is_known_after_a_restart() -> None:
    stage, _, _ = left_out(0)
    assert restarted(stage).state.recent == dict.fromkeys(("ann", "bob", "cem", "dan"), 1)


def test_the_last_record_is_there_to_be_said_again() -> None:
    stage, _, _ = left_out(0)
    after = restarted(stage)
    assert after.state.sealed == sealed(stage.records[-1])
    assert (after.state.phase, after.state.started) == (Phase.ACCUMULATE, True)


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


def test_a_late_holder_still_has_its_units_within_the_grace() -> None:
    stage, trainers, _ = left_out(0)
    stage.wait(2)
    late = trainers[3]
    assert late.undone
    after = restarted(stage)
    for trainer in trainers[:3]:
        come_back(after, trainer)
    after.commit(*trainers[:3])
    late.step, late.index = after.state.step, after.state.index
    come_back(after, late)
    assert after.state.leases.holds(late.accumulator, late.undone)
    assert sent(after.said, m.AccumulatorRevoked, late.peer) == []


# --- many epochs


def epochs(count: int, settled: list[Unit]) -> Stage:
    marks = [Mark(epoch, 0, 10_000) for epoch in range(count)] + [Mark(count, 0, 400)]
    return Stage(marks=marks, settled=settled, index=5, step=5, fence=3)


def test_a_restart_in_epoch_97_leases_no_old_epoch_again() -> None:
    whole = [Unit(epoch, 0, 0, 10_000) for epoch in range(97)]
    stage = epochs(97, [*whole, Unit(97, 0, 0, 100)])
    assert stage.state.leases.epoch == 97
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
