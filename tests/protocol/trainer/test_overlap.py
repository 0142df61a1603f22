"""Staleness 1: work done between a cut and the round's outcome goes into a second sum, for the next round (rule 10)."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.state import Phase
from peer_agent.protocol.trainer.tokens import highest
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import RELAY, TOKENS, Stage, ready, unit, void

UNIT = 4 * TOKENS


def overlapping(*numbers: int, more: tuple[int, ...] = (8, 9)) -> Stage:
    """Return a trainer that has offered units and holds leases for `more` in the next round."""
    stage = ready(*numbers, staleness=1)
    stage.lease(*more)
    stage.offers()
    return stage


def bases(stage: Stage) -> dict[int, int]:
    """Return, by unit number, the step on which each unit was computed."""
    return {done.unit.start // 4: done.base for done in stage.core.done}


def test_no_unit_begins_before_the_outcome_without_staleness() -> None:
    stage = ready(0)
    stage.lease(8, quota=4)
    stage.offers()
    stage.plans()
    assert stage.core.in_hand is None
    stage.lease(9)
    assert stage.core.in_hand is None


def test_cut_leaves_the_unit_in_hand_and_more_units_follow() -> None:
    stage = overlapping(0, more=(8, 9, 10, 11, 12))
    stage.computes()
    assert stage.did(e.Keep)
    stage.plans()
    stage.computes()
    stage.hears_commit(1, own=stage.contribution())
    assert stage.core.phase is Phase.APPLYING
    stage.computes()
    assert bases(stage) == {0: 0, 8: 0, 9: 0, 10: 0}
    assert stage.last(e.Compute).units == (unit(11),), "its averages are still on their way"


def test_offer_holds_the_work_done_at_the_cut_and_does_not_grow() -> None:
    stage = ready(0, 1, staleness=1)
    stage.lease(8)
    stage.hears(m.Cut(run=RUN, step=0, fence=1, attempt=1, round=1, codec="fp32", chunk_elements=16 * 1024))
    freeze = stage.last(e.Freeze)
    stage.computes()
    stage.handle(e.Frozen(freeze.job, b"r" * 32, 1.0))
    offer = stage.heard(m.Offer)[-1]
    assert [done.unit for done in offer.units] == [unit(0), unit(1)]
    assert (offer.loss_tokens, offer.loss_sum, highest(offer.weights)) == (2 * UNIT, 5.0, 2 * UNIT)
    assert offer.weights == freeze.weights
    stage.waits(2.0)
    report = stage.heard(m.Report)[-1]
    assert (report.loss_tokens, len(report.done), report.undone) == (3 * UNIT, 3, 0), "of both sums"


def test_whoever_rested_at_the_quota_goes_on_with_the_cut() -> None:
    stage = ready(staleness=1)
    stage.lease(0, 8, quota=4)
    stage.computes()
    assert stage.core.in_hand is None
    stage.offers()
    assert stage.last(e.Compute).units == (unit(8),)
    stage.computes()
    stage.lease(9, quota=4)
    assert stage.core.in_hand is None, "the next batch has a quota too"
    stage.hears(void())
    assert stage.core.in_hand is None, "of a void round both count"


def test_commit_settles_the_offer_and_the_rest_is_offered_next() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.plans()
    stage.commits(1, own=stage.contribution())
    assert stage.did(e.Settle)
    assert not stage.did(e.Discard)
    assert bases(stage) == {8: 0}
    stage.computes()
    assert bases(stage) == {8: 0, 9: 1}
    offer = stage.offers()
    assert {done.unit: done.base for done in offer.units} == {unit(8): 0, unit(9): 1}
    assert (offer.loss_tokens, highest(offer.weights)) == (2 * UNIT, 2 * UNIT)


def test_partly_included_offer_is_carried_beside_the_second_sum() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.plans()
    stage.commits(1, own=stage.contribution((0, 4)))
    assert [(part.first, part.stop, part.tokens) for part in stage.offers().weights] == [(0, 4, UNIT), (4, 8, 2 * UNIT)]
    assert stage.core.carried == UNIT


def test_after_a_void_both_sums_are_offered_together() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.hears(void())
    assert stage.did(e.Release)
    offer = stage.offers(attempt=2, round=2)
    assert {done.unit: done.base for done in offer.units} == {unit(0): 0, unit(8): 0}
    assert highest(offer.weights) == 2 * UNIT


def test_a_cut_whose_void_was_lost_takes_both_as_well() -> None:
    stage = overlapping(0)
    stage.computes()
    offer = stage.offers(attempt=2, round=2)
    assert len(offer.units) == 2
    assert [type(action) for action in stage.asked if isinstance(action, e.Release | e.Freeze)][-2:] == [
        e.Release,
        e.Freeze,
    ]


def test_update_without_the_offer_leaves_it_for_one_more_round() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.commits(1)
    assert bases(stage) == {0: 0, 8: 0}
    assert stage.did(e.Release)
    assert len(stage.offers().units) == 2


def test_offer_left_out_twice_goes_back_and_the_second_sum_stays() -> None:
    """Work that is two steps old would be refused. Work done during the round is one step old."""
    stage = overlapping(0)
    stage.plans()
    stage.commits(1)
    accumulator = stage.core.accumulator
    stage.offers()
    stage.computes()
    stage.hush()
    stage.commits(2)
    assert bases(stage) == {8: 1}
    assert stage.did(e.DiscardHeld)
    assert not stage.did(e.Discard)
    assert not stage.did(e.Renew)
    assert stage.heard(m.UnitsReturned) == [m.UnitsReturned(run=RUN, units=(unit(0),), reason="stale")]
    assert stage.core.accumulator == accumulator
    offer = stage.offers()
    assert [done.unit for done in offer.units] == [unit(8)]
    assert highest(offer.weights) == UNIT


def test_work_not_offered_is_kept_one_step_and_then_redone() -> None:
    stage = ready(0, staleness=1)
    stage.lease(1)
    stage.commits(1)
    assert bases(stage) == {0: 0}
    assert not stage.did(e.Discard)
    stage.computes()
    stage.commits(2)
    assert stage.did(e.Discard)
    assert bases(stage) == {}
    assert stage.core.undone == (unit(0), unit(1))


def test_a_unit_is_of_the_parameters_that_it_began_with() -> None:
    stage = overlapping(0)
    stage.plans()
    stage.commits(1, own=stage.contribution())
    stage.computes(base=0)
    assert bases(stage) == {8: 0}


def test_a_unit_that_took_two_steps_is_done_again() -> None:
    stage = overlapping(0)
    stage.plans()
    stage.commits(1, own=stage.contribution())
    stage.commits(2)
    stage.computes(base=0)
    assert not stage.did(e.Keep)
    assert bases(stage) == {}
    assert stage.last(e.Compute).units == (unit(8),)


def test_no_unit_begins_while_the_update_is_being_made() -> None:
    """A unit begun at that moment would delay the update."""
    stage = overlapping(0)
    stage.plans()
    stage.handle(e.Gathered(1, b"h" * 32, ()))
    stage.hears_commit(1, own=stage.contribution())
    stage.computes()
    assert stage.core.in_hand is None
    stage.applies()
    assert stage.last(e.Compute).units == (unit(9),)


@pytest.mark.parametrize("heard", [(2,), (2, 1)])
def test_two_steps_behind_nothing_is_begun_that_would_be_refused(heard: tuple[int, ...]) -> None:
    stage = overlapping(0, more=(8, 9))
    stage.plans()
    for index in heard:
        stage.hears_commit(index)
    stage.computes()
    assert stage.core.in_hand is None
    assert bases(stage)[8] == 0, "what was in hand may still be of use"


def test_behind_the_head_and_in_no_round_nothing_is_begun() -> None:
    stage = ready(staleness=1)
    stage.lease(0, 1)
    stage.hears_commit(1)
    stage.computes()
    assert stage.core.in_hand is None


def test_hello_in_a_round_lists_both_sums_and_the_unit_in_hand() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.hears(m.Rehello(run=RUN, fence=1))
    hello = stage.heard(m.Hello)[-1]
    assert [done.unit for done in hello.done] == [unit(0), unit(8)]
    assert hello.undone == (unit(9),)
    assert hello.in_doubt == (m.InDoubt(0, 1, 1),)


def test_a_new_host_ends_the_round_and_both_sums_stay() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.hears(m.Rehello(run=RUN, fence=2), stage.greeting(fence=2))
    assert stage.core.phase is Phase.ACCUMULATE
    assert bases(stage) == {0: 0, 8: 0}
    offer = stage.offers(fence=2)
    assert len(offer.units) == 2


def test_what_overflows_gives_both_sums_back() -> None:
    stage = ready(0, staleness=1)
    stage.lease(8)
    stage.hears(m.Cut(run=RUN, step=0, fence=1, attempt=1, round=1, codec="fp32", chunk_elements=16 * 1024))
    stage.computes()
    stage.handle(e.Overflowed(stage.last(e.Freeze).job))
    assert set(stage.heard(m.UnitsReturned)[-1].units) == {unit(0), unit(8)}
    assert stage.did(e.Renew)


def test_a_replica_that_differs_gives_everything_back() -> None:
    stage = overlapping(0)
    stage.computes()
    stage.hears(m.Reload(run=RUN, step=0))
    assert set(stage.heard(m.UnitsReturned)[-1].units) == {unit(0), unit(8), unit(9)}
    assert stage.core.done == ()


def test_reducers_are_served_while_it_computes() -> None:
    stage = overlapping(0)
    stage.plans()
    stage.handle(e.OpenHeard(RELAY, m.Open(run=RUN, step=0, fence=1, attempt=1, slot=1)))
    assert stage.did(e.Serve)
    assert stage.core.in_hand is not None
