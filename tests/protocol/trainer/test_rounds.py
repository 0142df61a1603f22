"""A round as a trainer sees it, with messages repeated, late or lost."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer import rounds
from peer_agent.protocol.trainer.state import Phase
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import RELAY, Stage, cut, greeting, opening, ready, unit, void


def in_round(attempt: int = 1) -> Stage:
    stage = ready(0)
    stage.lease(1)
    stage.offers()
    stage.plans(attempt=attempt)
    assert stage.core.phase is Phase.REDUCE
    stage.hush()
    return stage


def test_an_offer_says_what_is_held_and_holds_until_the_end() -> None:
    stage = ready(0, 1)
    offer = stage.offers(attempt=3, fence=2)
    assert (offer.step, offer.fence, offer.attempt, offer.accumulator) == (0, 2, 3, stage.core.accumulator)
    assert offer.units == (m.DoneUnit(unit(0), 0), m.DoneUnit(unit(1), 0))
    assert (offer.root, offer.norm, offer.loss_sum) == (b"r" * 32, 1.0, 5.0)
    stage.lease(2, fence=2)
    assert stage.core.undone == (unit(2),)
    assert not stage.did(e.Compute), "nothing is computed between the cut and the outcome"
    assert stage.core.done == offer.units


@pytest.mark.parametrize("again", [cut(), cut(attempt=0), cut(step=1, attempt=2), cut(fence=0, attempt=9)])
def test_a_cut_that_is_not_new_here_changes_nothing(again: m.Cut) -> None:
    stage = ready(0)
    stage.offers()
    round_ = stage.core.round
    stage.hears(again)
    assert (stage.actions, stage.core.phase, stage.core.round) == ([], Phase.OFFER, round_)


@pytest.mark.parametrize("change", [{"attempt": 2, "round": 2}, {"fence": 2}])
def test_a_new_cut_ends_a_round_whose_void_was_lost(change: dict[str, int]) -> None:
    stage = in_round()
    stage.hears(cut(**change))
    assert [type(action) for action in stage.actions] == [e.Release, e.Freeze]
    assert stage.core.phase is Phase.FREEZE


def test_encoding_for_a_closed_round_is_not_offered() -> None:
    stage = ready(0)
    stage.hears(cut())
    late = stage.last(e.Freeze).job
    stage.hears(void(), cut(attempt=2, round=2))
    stage.handle(e.Frozen(late, b"o" * 32, 1.0))
    assert stage.heard(m.Offer) == []
    stage.handle(e.Frozen(stage.last(e.Freeze).job, b"r" * 32, 1.0))
    assert [offer.attempt for offer in stage.heard(m.Offer)] == [2]


def test_plan_before_the_offer_is_followed_without_a_part() -> None:
    stage = ready(0)
    stage.hears(cut())
    stage.plans()
    assert stage.core.phase is Phase.REDUCE
    stage.handle(e.Frozen(stage.last(e.Freeze).job, b"x" * 32, 1.0))
    assert stage.heard(m.Offer) == []
    stage.handle(e.OpenHeard(RELAY, opening()))
    assert not stage.did(e.Serve)


def test_gradients_that_added_up_to_infinity_are_given_back() -> None:
    stage = ready(0, 1)
    stage.hears(cut())
    accumulator = stage.core.accumulator
    stage.handle(e.Overflowed(stage.last(e.Freeze).job))
    assert stage.last(e.Warn).fault.code == "E108"
    assert stage.heard(m.UnitsReturned)[-1].units == (unit(0), unit(1))
    assert stage.heard(m.Hello)[-1].accumulator == stage.core.accumulator != accumulator
    assert stage.core.phase is Phase.ACCUMULATE


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({"attempt": 2}, True),
        ({"attempt": 1}, False),
        ({"attempt": 0}, False),
        ({"fence": 2, "attempt": 2}, False),
        ({"step": 1, "attempt": 2}, False),
        ({"round": 0, "attempt": 2}, False),
    ],
)
def test_newer_attempts_of_this_round_are_followed(change: dict[str, int], follows: bool) -> None:
    stage = in_round()
    stage.plans(**change)
    assert stage.did(e.Send) == follows


def test_a_plan_from_before_the_cut_is_not_followed() -> None:
    stage = ready(0)
    stage.offers(attempt=2)
    stage.plans(attempt=1)
    assert stage.actions == []


def test_a_plan_of_a_later_round_ends_ours() -> None:
    stage = in_round()
    stage.plans(attempt=2, round=2)
    assert [type(action) for action in stage.actions] == [e.Release, e.Compute]
    assert stage.core.phase is Phase.ACCUMULATE


def test_reducers_are_served_when_they_open_and_when_they_return() -> None:
    stage = in_round()
    for _ in range(2):
        stage.handle(e.OpenHeard(RELAY, opening()))
        assert stage.actions == [e.Serve(RELAY, opening())]
    for stray in (opening(attempt=0), opening(step=1), opening(fence=2), opening(slot=0)):
        stage.handle(e.OpenHeard(RELAY, stray))
        assert stage.actions == [], stray


def test_dropped_trainer_sends_no_more_gradient_in_that_attempt() -> None:
    """A regression: the dropped trainer's gradient took bandwidth from the averages. Rounds with a slow reducer took a
    third longer.
    """
    stage = in_round()
    stray = ({"slot": 0}, {"attempt": 2}, {"fence": 2}, {"step": 1})
    for change in stray:
        stage.hears(dropped(**change))
        assert not stage.did(e.StopSending), change
    stage.hears(dropped())
    assert stage.actions == [e.StopSending()]
    stage.hears(dropped())
    assert stage.actions == [], "it was said again"
    stage.handle(e.OpenHeard(RELAY, opening()))
    assert stage.actions == [], "a reducer that comes back"
    stage.plans(attempt=2)
    stage.handle(e.OpenHeard(RELAY, opening(attempt=2)))
    assert stage.did(e.Serve), "the next attempt may ask for it"


def dropped(**change: int) -> m.Drop:
    place = {"step": 0, "fence": 1, "attempt": 1, "slot": opening().slot}
    return m.Drop(run=RUN, **(place | change))


def gathered(attempt: int = 1) -> e.Gathered:
    return e.Gathered(attempt, b"h" * 32, (m.Arrival(RELAY, 1000, 0.5, 1.5),), (m.Departure(RELAY, 0.7),))


def test_it_says_once_that_all_averages_of_its_attempt_have_come() -> None:
    stage = ready(0)
    stage.offers()
    stage.handle(gathered())
    assert stage.heard(m.Arrivals) == [], "there is no plan of it"
    stage.plans()
    stage.handle(gathered(attempt=2))
    assert stage.heard(m.Arrivals) == [], "of another attempt"
    stage.handle(gathered())
    (told,) = stage.heard(m.Arrivals)
    assert (told.step, told.attempt, told.holds) == (stage.core.step, 1, b"h" * 32)
    assert told.arrivals == (m.Arrival(RELAY, 1000, 0.5, 1.5),)
    assert told.departures == (m.Departure(RELAY, 0.7),)


def test_arrivals_are_reported_after_the_commit_while_awaited() -> None:
    """Only this trainer's report can show how slow its link is."""
    stage = ready(0)
    stage.offers()
    stage.plans()
    stage.hears_commit(1)
    assert stage.core.phase is Phase.APPLYING
    stage.handle(gathered())
    (told,) = stage.heard(m.Arrivals)
    assert told.arrivals == (m.Arrival(RELAY, 1000, 0.5, 1.5),)
    stage.applies()
    stage.handle(gathered())
    assert stage.heard(m.Arrivals) == [told], "of an attempt that is over"


def test_a_reducer_that_was_told_the_plan_earlier_waits_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "EARLY_OPENS", 2)
    stage = in_round()
    for number in range(3):
        stage.handle(e.OpenHeard(RELAY, opening(attempt=2, received=(number,))))
        assert stage.actions == []
    stage.plans(attempt=2)
    served = [action.message.received for action in stage.actions if isinstance(action, e.Serve)]
    assert served == [(1,), (2,)], "so many are kept"


@pytest.mark.parametrize(
    ("change", "is_over"),
    [
        ({"attempt": 1}, False),
        ({"attempt": 2}, True),
        ({"attempt": 3}, True),
        ({"attempt": 2, "step": 1}, False),
        ({"attempt": 2, "fence": 0}, False),
        ({"attempt": 0, "fence": 2}, True),
    ],
)
def test_a_void_ends_its_attempt_and_those_before_it(change: dict[str, int], is_over: bool) -> None:
    stage = in_round(attempt=2)
    held = stage.core.done
    stage.hears(void(**change))
    assert (stage.core.round is None) == is_over
    assert stage.did(e.Release) == is_over
    assert stage.did(e.Compute) == is_over
    assert stage.core.done == held, "nothing is lost"


@pytest.mark.parametrize(("change", "is_over"), [({"fence": 2}, True), ({"fence": 1}, False)])
def test_a_newer_host_at_the_same_step_has_no_such_round(change: dict[str, int], is_over: bool) -> None:
    stage = in_round()
    stage.hears(greeting(**change))
    assert (stage.core.round is None) == is_over


def test_a_newer_host_at_a_later_step_may_have_committed_it() -> None:
    stage = in_round()
    own = stage.contribution()
    stage.hears(greeting(fence=2, index=1, step=1, reconciled=False))
    assert stage.core.phase is Phase.REDUCE
    stage.commits(1, own=own, fence=2)
    assert stage.core.done == ()


def test_trainer_follows_a_newer_entry_after_a_void_round() -> None:
    stage = in_round()
    stage.hears_commit(3)
    stage.hears(void())
    assert stage.core.phase is Phase.FOLLOWING
    assert not stage.did(e.Compute)


def test_a_revoked_accumulator_is_forgotten_in_a_round_too() -> None:
    stage = in_round()
    revoked = m.AccumulatorRevoked(run=RUN, accumulator=stage.core.accumulator, reason="a test")
    stage.hears(revoked)
    assert stage.core.phase is Phase.ACCUMULATE
    assert [type(action) for action in stage.actions if not isinstance(action, e.Say | e.Tell)] == [e.Release, e.Renew]
    assert (stage.core.done, stage.core.undone, stage.core.quota) == ((), (), 0)
    stage.hush()
    stage.hears(revoked)
    assert stage.actions == [], "said twice"
