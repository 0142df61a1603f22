"""What follows from what a trainer knows: what it holds, and whether it has a part in the round."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.letters import own_part
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.opened import opened_plan
from tests.protocol.trainer.cast import CHUNKS, ME, OTHER, RELAY, TOKENS, opening, plan, ready


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
    """A slot under another root was made of an offer that this process did not make."""
    stage = ready(0)
    stage.offers()
    stage.take(e.PlanHeard(opened_plan(own_part(made, ME))))
    assert stage.core.round is not None
    assert stage.core.round.slot is None
    stage.take(e.OpenHeard(RELAY, opening()))
    assert not stage.did(e.Serve)
