"""Leases, the unit being computed, and completed work."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer import work
from peer_agent.protocol.trainer.state import Phase
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import TOKENS, Stage, greeting, ready, unit, void


def test_what_comes_after_the_units_is_kept_from_lease_to_lease() -> None:
    stage = ready()
    stage.hears(m.Lease(run=RUN, fence=1, units=(unit(0),), quota=100, coming=(3, 4)))
    assert stage.core.coming == (3, 4)
    stage.hears(m.Lease(run=RUN, fence=1, units=(), quota=100))
    assert stage.core.coming == ()


def test_units_are_computed_one_after_another_up_to_the_quota() -> None:
    stage = ready()
    stage.lease(0, 1, 2, quota=8)
    assert stage.last(e.Compute).units == (unit(0),)
    stage.computes(2)
    assert [done.unit for done in stage.core.done] == [unit(0), unit(1)]
    assert stage.core.in_hand is None, "it rests"
    stage.lease(quota=12)
    assert stage.last(e.Compute).units == (unit(2),)


def test_a_lease_that_is_said_twice_changes_nothing() -> None:
    stage = ready(0)
    stage.lease(1, 1, 2)
    before = stage.core.undone
    stage.lease(0, 1, 2)
    assert stage.core.undone == before == (unit(1), unit(2))
    stage.offers()
    stage.plans()
    stage.commits(1, own=stage.contribution())
    stage.lease(0)
    assert stage.core.undone == (unit(1), unit(2))


def test_a_lease_that_crosses_a_hello_does_not_count() -> None:
    stage = ready()
    stage.hears(m.Rehello(run=RUN, fence=1))
    stage.lease(0)
    assert stage.core.undone == ()
    stage.hears(greeting())
    stage.lease(1)
    assert stage.core.undone == (unit(1),)


def test_a_lease_of_a_host_that_is_gone_does_not_count() -> None:
    stage = ready()
    stage.lease(0, fence=3)
    stage.lease(1, fence=2)
    assert stage.core.undone == (unit(0),)


def test_more_than_a_lease_can_name_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_UNITS", 2)
    stage = ready()
    stage.lease(0, 1, 2, 3, quota=0)
    assert stage.core.undone == (unit(0), unit(1))
    stage.lease(4, quota=0)
    assert stage.core.undone == (unit(0), unit(1))


def test_units_of_updates_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "REMEMBERED", 1)
    stage = ready(0, 1)
    stage.offers()
    stage.plans()
    stage.commits(1, own=stage.contribution())
    assert list(stage.core.settled) == [unit(1)]


def test_a_short_sample_weighs_as_many_tokens_as_it_has() -> None:
    """The last sample of a shard may be short. Missing tokens must not count towards the mean (rule 33)."""
    stage = ready(0)
    stage.lease(1)
    stage.computes(tokens=4 * TOKENS - 3)
    offer = stage.offers()
    assert offer.loss_tokens == 8 * TOKENS - 3
    assert [weight.tokens for weight in offer.weights] == [8 * TOKENS - 3]
    assert stage.core.carried == 0


def test_what_a_thread_finishes_after_the_cut_does_not_count() -> None:
    stage = ready(0)
    stage.lease(1)
    late = stage.last(e.Compute).job
    stage.offers()
    stage.handle(e.Computed(late, 2.5, (32,), 0))
    assert not stage.did(e.Keep)
    stage.hears(void())
    assert stage.last(e.Compute).units == (unit(1),), "it is begun anew"
    stage.handle(e.Computed(late, 2.5, (32,), 0))
    assert not stage.did(e.Keep)
    stage.computes()
    assert stage.did(e.Keep)


def test_a_gradient_that_is_not_finite_is_told_of_and_given_back() -> None:
    stage = ready()
    stage.lease(0, 1)
    stage.handle(e.NotFinite(stage.last(e.Compute).job))
    assert stage.heard(m.UnitsReturned)[-1] == m.UnitsReturned(run=RUN, units=(unit(0),), reason="non_finite")
    assert stage.last(e.Warn).fault.code == "E108"
    assert stage.last(e.Compute).units == (unit(1),)
    assert stage.core.undone == (unit(1),)
    stage.handle(e.NotFinite(1))
    assert stage.actions == [], "of an abandoned job"


def several(*numbers: int, in_one_pass: int, quota: int = 100) -> Stage:
    stage = ready()
    stage.lease(*numbers, quota=quota)
    stage.handle(e.Computed(stage.last(e.Compute).job, 2.5, (32,), 0, in_one_pass))
    return stage


def test_pass_computes_as_many_units_as_the_device_takes() -> None:
    stage = several(0, 1, 2, 3, 4, in_one_pass=3)
    assert stage.last(e.Compute).units == (unit(1), unit(2), unit(3))
    assert stage.core.undone == (unit(1), unit(2), unit(3), unit(4))
    stage.handle(e.Computed(stage.last(e.Compute).job, 9.0, (10, 0, 20), 0, 8))
    assert sum(isinstance(action, e.Keep) for action in stage.actions) == 1, "there is one gradient of all"
    assert stage.core.done == tuple(m.DoneUnit(unit(number), 0) for number in range(4))
    assert [(how.loss_sum, how.loss_tokens) for how in stage.core.fresh.values()] == [
        (2.5, 32),
        (pytest.approx(3.0), 10),
        (0.0, 0),
        (pytest.approx(6.0), 20),
    ]
    assert stage.last(e.Compute).units == (unit(4),), "there are no more"


def test_units_without_a_loss_weigh_nothing() -> None:
    stage = several(0, 1, 2, in_one_pass=2)
    stage.handle(e.Computed(stage.last(e.Compute).job, 0.0, (0, 0), 0))
    assert (stage.core.loss_tokens, stage.core.loss_sum) == (32, 2.5)


def test_pass_has_no_unit_that_would_exceed_the_quota() -> None:
    stage = several(0, 1, 2, 3, 4, in_one_pass=8, quota=9)
    assert stage.last(e.Compute).units == (unit(1), unit(2))
    stage.computes()
    assert stage.core.in_hand is None, "it rests"


def test_cut_abandons_a_pass_and_its_units_restart_in_order() -> None:
    stage = several(0, 1, 2, 3, in_one_pass=2)
    late = stage.last(e.Compute).job
    offer = stage.offers()
    assert [done.unit for done in offer.units] == [unit(0)]
    assert stage.core.undone == (unit(1), unit(2), unit(3))
    stage.handle(e.Computed(late, 5.0, (32, 32), 0, 2))
    assert not stage.did(e.Keep)
    stage.hears(void())
    assert stage.last(e.Compute).units == (unit(1), unit(2))


def test_non_finite_unit_is_blamed_only_after_it_ran_alone() -> None:
    stage = several(0, 1, 2, 3, in_one_pass=2)
    stage.hush()
    stage.handle(e.NotFinite(stage.last(e.Compute).job))
    assert not stage.heard(m.UnitsReturned)
    assert not stage.did(e.Warn)
    assert stage.last(e.Compute).units == (unit(1),)
    stage.computes()
    stage.handle(e.NotFinite(stage.last(e.Compute).job, in_one_pass=2))
    assert stage.heard(m.UnitsReturned)[-1].units == (unit(2),)
    assert stage.last(e.Compute).units == (unit(3),)
    assert [done.unit for done in stage.core.done] == [unit(0), unit(1)]


def test_units_not_begun_are_given_back_and_those_in_hand_kept() -> None:
    stage = ready()
    stage.lease(0, 1, 2)
    stage.handle(e.GaveBack())
    assert stage.heard(m.UnitsReturned)[-1].units == (unit(1), unit(2))
    assert stage.core.undone == (unit(0),)
    stage.handle(e.GaveBack())
    assert stage.actions == []


def test_work_of_a_step_that_was_cut_without_us_is_done_again() -> None:
    stage = ready(0, 1)
    stage.commits(1)
    assert stage.did(e.Discard)
    assert stage.core.undone == (unit(0), unit(1))
    assert stage.last(e.Compute).units == (unit(0),)
    stage.computes(2)
    assert {done.base for done in stage.core.done} == {1}


def test_work_missed_three_times_is_kept_one_step_old_at_most() -> None:
    stage = ready(0)
    for index in (1, 2, 3):
        stage.commits(index)
        assert stage.core.undone == (unit(0),), index
        stage.computes()
    stage.commits(4)
    assert stage.core.done == (m.DoneUnit(unit(0), 3),)
    assert stage.core.undone == ()
    stage.commits(5)
    assert stage.core.undone == (unit(0),), "two steps old it would be refused"


def test_a_round_that_we_were_in_begins_the_count_anew() -> None:
    stage = ready(0)
    for index in (1, 2, 3):
        stage.commits(index)
        stage.computes()
    stage.offers()
    stage.plans()
    stage.commits(4, own=stage.contribution())
    assert stage.core.passed_over == 0
    stage.lease(5)
    stage.computes()
    stage.commits(5)
    assert stage.core.undone == (unit(5),)


def test_left_out_offer_is_never_redone_and_finally_given_up() -> None:
    stage = ready(0)
    accumulator = stage.core.accumulator
    stage.offers()
    stage.commits(1)
    assert stage.core.done == (m.DoneUnit(unit(0), 0),)
    assert not stage.did(e.Discard)
    stage.commits(2)
    assert stage.core.done == ()
    assert stage.core.accumulator != accumulator
    assert stage.did(e.Renew)
    assert [type(message) for message in stage.said[-2:]] == [m.Hello, m.Reaches]


def test_update_with_revoked_work_leaves_current_work_untouched() -> None:
    stage = ready(0)
    stage.offers()
    stage.plans()
    own = stage.contribution()
    stage.hears(m.AccumulatorRevoked(run=RUN, accumulator=stage.core.accumulator, reason="a test"), greeting())
    accumulator = stage.core.accumulator
    stage.lease(1, quota=0)
    stage.commits(1, own=own)
    assert (stage.core.accumulator, stage.core.undone) == (accumulator, (unit(1),))


def test_update_with_an_offer_already_void_ends_the_accumulator() -> None:
    """The round is over for this trainer. The averaged part cannot be removed from a sum that has grown since."""
    stage = ready(0)
    stage.offers()
    stage.plans()
    own = stage.contribution()
    stage.hears(void())
    accumulator = stage.core.accumulator
    stage.commits(1, own=own)
    assert stage.core.accumulator != accumulator
    assert stage.core.phase is Phase.ACCUMULATE
    assert stage.heard(m.Hello)[-1].done == ()


def test_update_with_part_of_the_offer_ends_the_accumulator() -> None:
    """The trainer's work is a single sum, so no part of it can be removed."""
    stage = ready(0, 1)
    stage.offers()
    stage.plans()
    accumulator = stage.core.accumulator
    stage.commits(1, own=stage.contribution() | {"units": (unit(0),)})
    assert stage.core.accumulator != accumulator
    assert stage.heard(m.Hello)[-1].done == ()
