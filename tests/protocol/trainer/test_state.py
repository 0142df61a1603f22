"""Facts derived from a trainer's state: the units in its sums, and whether it is part of the round."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.sealed import own_part
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.state import accumulator_of, new_trainer
from tests.protocol.identities import RUN
from tests.protocol.trainer.stage import CHUNKS, ME, OTHER, RELAY, TOKENS, opening, plan, ready, unit, void


def test_tokens_are_what_is_done_and_what_was_left_out_of_chunks() -> None:
    stage = ready(0, 1)
    offer = stage.offers()
    assert offer.weights == (m.Weight(0, CHUNKS, 8 * TOKENS),)
    stage.plans()
    stage.commits(1, own=stage.contribution((0, 3)))
    assert (stage.core.samples, stage.core.loss_tokens, stage.core.loss_sum) == (0, 0, 0)
    assert stage.core.carried == 8 * TOKENS
    stage.lease(2)
    stage.computes()
    assert stage.core.carried == 8 * TOKENS
    offer = stage.offers(attempt=2)
    assert offer.weights == (m.Weight(0, 3, 4 * TOKENS), m.Weight(3, CHUNKS, 12 * TOKENS))
    assert (offer.loss_tokens, offer.loss_sum) == (4 * TOKENS, 2.5), "what was left out counts in its weight alone"
    assert stage.core.carried == 8 * TOKENS


@pytest.mark.parametrize("made", [plan(peer=OTHER), plan(root=b"x" * 32)])
def test_only_what_was_offered_is_sent(made: m.Plan) -> None:
    """A slot with a different root belongs to an offer that this process did not make."""
    stage = ready(0)
    stage.offers()
    stage.handle(e.PlanHeard(own_part(made, ME)))
    assert stage.core.round is not None
    assert stage.core.round.slot is None
    stage.handle(e.OpenHeard(RELAY, opening()))
    assert not stage.did(e.Serve)


def test_process_starts_empty_with_its_own_accumulator() -> None:
    core = new_trainer(RUN, ME, 5.0, 0xAB)
    assert core.accumulator == "0" * 30 + "ab" != accumulator_of(0xAC)
    assert (core.done, core.undone, core.weights, core.carried, core.chunks) == ((), (), (), 0, 0)
    assert not core.has_state
    assert ready().core.chunks == CHUNKS


def test_offer_made_in_vain_and_later_work_are_both_done() -> None:
    stage = ready(0)
    stage.offers()
    stage.hears(void())
    stage.lease(1)
    stage.computes(tokens=3 * TOKENS)
    assert stage.core.done == (m.DoneUnit(unit(0), 0), m.DoneUnit(unit(1), 0))
    assert (stage.core.samples, stage.core.loss_tokens, stage.core.loss_sum) == (8, 7 * TOKENS, 5.0)
    assert stage.core.weights == (m.Weight(0, CHUNKS, 7 * TOKENS),)
    assert stage.core.carried == 0, "no update has left anything out"


def test_it_rests_when_it_holds_its_quota() -> None:
    stage = ready()
    stage.lease(0, 1, quota=5)
    stage.computes()
    assert not stage.core.is_full
    stage.computes()
    assert stage.core.is_full
    stage.lease(quota=8)
    assert stage.core.is_full
    stage.lease(quota=9)
    assert not stage.core.is_full


def test_it_is_at_the_head_with_the_newest_state_it_has_heard_of() -> None:
    stage = ready()
    assert stage.core.is_at_head
    stage.hears_commit(3)
    assert not stage.core.is_at_head
    assert stage.core.has_state
    core = new_trainer(RUN, ME, 0.0, 1)
    core.index = core.head
    assert not core.is_at_head, "without a state it is nowhere"
