"""Facts derived from a coordinator's state: its reducers, the quarantined peers, and whether the run can continue."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.reliability import Quarantine, Reliability
from peer_agent.protocol.coordinator.state import DIVERGED
from tests.protocol.coordinator.scenes import four, pair, reducing
from tests.protocol.coordinator.stage import Stage

# --- who reduces


def test_peer_that_cannot_be_dialled_or_reduce_gets_no_part() -> None:
    stage, _, relays = reducing({}, {"url": ""}, {"reduces": False})
    assert {span.reducer for span in stage.spans()} == {relays[0]}


def test_a_trainer_that_nobody_reaches_reduces_nothing() -> None:
    stage, trainers, (relay,) = reducing()
    hello = m.Hello(
        run=stage.state.run, accumulator=trainers[0].accumulator, url="ws://me", reduces=True, keeps_log=True
    )
    stage.say(trainers[0].peer, hello)
    assert [member.peer for member in stage.state.reducers()] == [relay]
    assert not stage.member(trainers[0]).keeps_log


def test_reducers_that_failed_a_round_reduce_only_as_last_resort() -> None:
    stage, _, relays = reducing({}, {})
    first, second = (stage.state.members[relay] for relay in relays)
    first.reliability = in_quarantine(stage, until_round=stage.state.rounds)
    assert stage.state.reducers() == [second]
    second.reliability = first.reliability
    assert stage.state.reducers() == [first, second]


@pytest.mark.parametrize(
    ("overridden", "duty", "is_in"), [(True, "misses", True), (True, "reduce", False), (False, "misses", False)]
)
def test_reducer_that_failed_has_no_part_despite_an_override(overridden: bool, duty: str, is_in: bool) -> None:
    """A regression: after a round that all the trainers had missed, an auxiliary got the whole vector to reduce."""
    stage, _, relays = reducing({}, {})
    first = Reliability(failed_at=stage.state.now)
    setattr(first, duty, Quarantine(level=1, until_round=stage.state.rounds))
    stage.state.members[relays[0]].reliability = first
    stage.state.override.is_on = overridden
    assert (relays[0] in {member.peer for member in stage.state.reducers()}) is is_in


def test_stalled_reducers_reduce_only_where_there_is_no_other() -> None:
    stage, _, relays = reducing({}, {})
    stage.round.excluded = {relays[0]}
    assert [member.peer for member in stage.state.reducers()] == [relays[1]]
    stage.round.excluded = set(relays)
    assert [member.peer for member in stage.state.reducers()] == relays


def test_those_who_can_be_dialled_are_named_by_id() -> None:
    stage = Stage()
    relays = [stage.relay(name) for name in ("c", "a", "b")]
    assert [listener.peer for listener in stage.state.listeners()] == sorted(relays)


# --- quarantine


def in_quarantine(stage: Stage, **until: float) -> Reliability:
    return Reliability(misses=Quarantine(**until), failed_at=stage.state.now)  # type: ignore[arg-type]


def test_quarantine_ends_when_its_rounds_are_over() -> None:
    stage, *_ = reducing()
    this, last = (in_quarantine(stage, until_round=number) for number in (1, 0))
    assert stage.state.in_quarantine(this)
    assert not stage.state.in_quarantine(last)
    stage.reduce()
    stage.persist()
    assert not stage.state.in_quarantine(this), "the next round is another"


def test_quarantine_lasts_until_its_time_is_over() -> None:
    stage = Stage()
    stage.tick()
    reliability = in_quarantine(stage, until_s=stage.state.now + 16)
    stage.wait(15)
    assert stage.state.in_quarantine(reliability)
    stage.wait(2)
    assert not stage.state.in_quarantine(reliability)


def test_an_hour_is_the_longest() -> None:
    stage, honest, culprit = four(same_person=False)
    for _ in range(3):
        stage.commit(*honest, culprit)
    reliability = stage.member(culprit).reliability = in_quarantine(stage, until_round=stage.state.rounds + 16)
    stage.wait(3590)
    assert stage.state.in_quarantine(reliability)
    stage.wait(20)
    assert not stage.state.in_quarantine(reliability)


# --- whether the run goes on


def test_run_starts_with_its_minimum_and_goes_on_with_one() -> None:
    stage = Stage()
    stage.state.recipe = replace(stage.state.recipe, minimum_trainers=2)
    ann = stage.trainer("ann")
    assert not stage.state.has_quorum
    bob = stage.trainer("bob")
    assert stage.state.has_quorum
    stage.handle(e.Lost(bob.peer))
    assert not stage.state.has_quorum
    stage.state.started = True
    assert stage.state.has_quorum
    stage.handle(e.Lost(ann.peer))
    assert not stage.state.has_quorum


def test_it_is_done_with_its_last_step() -> None:
    stage = Stage(steps=2)
    stage.relay()
    stage.trainer("ann")
    stage.commit()
    assert not stage.state.done
    stage.commit()
    assert stage.state.done


def test_ended_early_it_is_done_with_the_open_round() -> None:
    stage, *_ = reducing()
    stage.state.goal = "finishing"
    assert not stage.state.done
    stage.reduce()
    stage.persist()
    assert stage.state.done


def test_a_model_has_diverged_when_every_trainer_says_so() -> None:
    stage, ann, bob = pair()
    said = stage.state.non_finite
    said[ann.peer] = DIVERGED
    assert not stage.state.has_diverged
    said[bob.peer] = DIVERGED - 1
    assert not stage.state.has_diverged
    said[bob.peer] = DIVERGED
    assert stage.state.has_diverged
    for trainer in (ann, bob):
        stage.handle(e.Lost(trainer.peer))
    assert not stage.state.has_diverged, "nobody is left to say so"
