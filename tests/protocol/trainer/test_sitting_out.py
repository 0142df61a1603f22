"""A round without this trainer: the trainer keeps its work, receives the averages, and takes part in the next round."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.state import Phase
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import OTHER, Stage, cut, ready, unit, void


def sit_out(**changes: int) -> m.SitOut:
    usual = {"step": 0, "fence": 1, "attempt": 1, "round": 1}
    return m.SitOut(run=RUN, reason="its link is slow", **{**usual, **changes})


def left_out(*numbers: int) -> Stage:
    stage = ready(*numbers or (0, 1))
    stage.lease(7)
    stage.hears(sit_out())
    return stage


def test_it_keeps_what_it_has_offers_nothing_and_says_why() -> None:
    stage = left_out(0, 1)
    held, told = stage.actions
    assert isinstance(held, e.Hold)
    assert isinstance(told, e.Tell)
    assert "its link is slow" in told.text
    assert (stage.core.phase, stage.heard(m.Offer)) == (Phase.OFFER, [])
    assert stage.core.undone == (unit(7),), "what was in hand is done later"
    assert [done.unit for done in stage.core.done] == [unit(0), unit(1)]
    stage.waits(60)
    assert stage.heard(m.Offer) == []


def test_it_takes_the_averages_and_says_that_it_has_them() -> None:
    stage = left_out()
    stage.plans(peer=OTHER)
    assert stage.did(e.Send)
    assert stage.core.round.slot is None
    stage.handle(e.Gathered(1, b"h" * 32, ()))
    assert [arrivals.holds for arrivals in stage.heard(m.Arrivals)] == [b"h" * 32]


def test_work_is_offered_in_the_next_round_with_its_own_step() -> None:
    stage = left_out(0, 1)
    stage.commits(1)
    assert not stage.did(e.Discard)
    assert stage.did(e.Compute), "it goes on at the head"
    stage.computes(1)
    offer = stage.offers(step=1)
    assert [(done.unit, done.base) for done in offer.units] == [(unit(0), 0), (unit(1), 0), (unit(7), 1)]
    assert offer.weights[0].tokens == offer.loss_tokens
    stage.plans(step=1)
    stage.commits(2, own=stage.contribution())
    assert stage.core.done == ()
    assert stage.core.held[0].tokens == 0


def test_work_left_out_twice_returns_its_leases_before_computing() -> None:
    stage = left_out(0, 1)
    before = stage.core.accumulator
    stage.commits(1)
    stage.hush()
    stage.commits(2)
    assert stage.core.accumulator != before
    assert (stage.core.done, stage.core.undone) == ((), ())
    names = [type(action) for action in stage.actions]
    assert e.Renew in names
    assert e.Compute not in names
    assert any("8 samples" in action.text for action in stage.actions if isinstance(action, e.Tell))
    (hello,) = stage.heard(m.Hello)
    assert (hello.accumulator, hello.done, hello.undone) == (stage.core.accumulator, (), ())


def test_a_void_round_lets_it_go_on_with_fresh_work() -> None:
    stage = left_out()
    stage.hears(void())
    assert (stage.core.phase, stage.core.round) == (Phase.ACCUMULATE, None)
    assert stage.did(e.Release)
    assert stage.did(e.Compute)
    stage.hears(cut(attempt=2, round=2))
    assert stage.core.phase is Phase.FREEZE


@pytest.mark.parametrize("again", [sit_out(attempt=0), sit_out(step=1, attempt=2), sit_out(fence=0, attempt=9)])
def test_what_is_not_new_here_changes_nothing(again: m.SitOut) -> None:
    stage = ready(0)
    stage.offers()
    stage.hears(again)
    assert (stage.actions, stage.core.round.offer is None) == ([], False)


def test_after_a_cut_whose_void_was_lost_it_ends_that_round() -> None:
    stage = ready(0)
    stage.offers()
    stage.hears(sit_out(attempt=2, round=2))
    assert [type(action) for action in stage.actions] == [e.Release, e.Hold, e.Tell]
    assert stage.core.round.offer is None


def test_who_is_behind_hears_nothing_of_it() -> None:
    stage = Stage()
    stage.hears(sit_out())
    assert stage.actions == []


def test_unasked_trainer_computes_on_and_applies_the_commit() -> None:
    """Reducers send averages to every linked trainer, so the plan lists this one as a receiver."""
    stage = ready(0)
    stage.plans(peer=OTHER)
    assert [type(action) for action in stage.actions] == [e.Send]
    assert (stage.core.phase, stage.core.round) == (Phase.ACCUMULATE, None), "and goes on computing"
    stage.hears_commit(1)
    assert stage.core.phase is Phase.APPLYING


@pytest.mark.parametrize("other", [{"step": 5}, {"fence": 0}])
def test_unasked_trainer_ignores_plans_of_another_step_or_host(other: dict[str, int]) -> None:
    stage = ready(0)
    stage.plans(peer=OTHER, **other)
    assert stage.actions == []
