"""What the encoding of averages loses comes with the next: of committed updates alone, and of chunks that stay here."""

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.averaging.codecs import Floats, decode
from peer_agent.averaging.reducer import Reduction
from peer_agent.averaging.residuals import Residuals
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.messages import Plan
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import OpenPlan
from tests.averaging.rounds import GRID, contributor, plan_of

SENDINGS = [contributor(seed, 100 + seed).offer("fp32") for seed in range(2)]
WHOLE = (1, 0, GRID.chunks)  # of the first attempt


def averages(residuals: Residuals, *, step: int = 7, codec: Codec = "int4", attempt: int = 1) -> list[Floats]:
    """An attempt in which one reducer averages everything; what receivers decode, by chunk."""
    plan = replace(plan_of(SENDINGS, codec_down=codec, cuts=(0, GRID.chunks), attempt=attempt), step=step)
    reduction = reduction_of(plan, residuals)
    tokens = sum(sending.weights[0].tokens for sending in SENDINGS)
    for slot, sending in enumerate(SENDINGS):
        for chunk in GRID:
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
    return [decode(codec, reduction.close(chunk, tokens), GRID.length(chunk)) for chunk in GRID]


def reduction_of(plan: Plan, residuals: Residuals) -> Reduction:
    reduction = Reduction(OpenPlan(plan, plan.slots), residuals)
    for slot, sending in enumerate(SENDINGS):
        assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
    return reduction


def exact() -> list[Floats]:
    return averages(Residuals(), codec="fp32")


def same(one: list[Floats], other: list[Floats]) -> list[bool]:
    """Chunk by chunk, bit for bit."""
    return [bool((a == b).all()) for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_what_is_lost_comes_with_the_next_average(codec: Codec) -> None:
    """The sum of what is sent stays within one rounding of the sum of what was averaged, however long."""
    residuals, sent, wanted = Residuals(), [np.zeros(GRID.length(c)) for c in GRID], exact()
    for step in range(7, 27):
        for chunk, values in enumerate(averages(residuals, step=step, codec=codec)):
            sent[chunk] += values
        residuals.commit(step + 1, 3, step + 1, [WHOLE])
    once = averages(Residuals(), codec=codec)
    for chunk in GRID:
        error = np.abs(sent[chunk] - 20 * wanted[chunk]).max()
        assert error < 2.5 * np.abs(once[chunk] - wanted[chunk]).max(), "else it would be twenty times that"


def test_a_void_round_changes_nothing() -> None:
    residuals = Residuals()
    averages(residuals)
    residuals.commit(8, 3, 8, [WHOLE])
    first = averages(residuals, step=8)
    residuals.void()
    assert all(same(averages(residuals, step=8, attempt=2), first))
    residuals.commit(9, 3, 9, [(2, 0, GRID.chunks)])
    assert not any(same(averages(residuals, step=9), first))


def test_it_moves_only_with_the_attempt_that_is_in_the_update() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    residuals.commit(8, 3, 8, [(2, 0, GRID.chunks)])  # what another attempt made, of which nothing is known here
    assert all(same(averages(residuals, step=8), alone))


def test_where_somebody_else_reduced_nothing_is_added() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    residuals.commit(8, 3, 8, [(1, 0, 2)])
    assert same(averages(residuals, step=8), alone) == [False, False, True, True, True]
    residuals.commit(9, 3, 9, [])
    assert all(same(averages(residuals, step=9), alone)), "nor one update later"


def test_after_an_update_that_was_not_heard_of_nothing_is_added() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    residuals.commit(8, 3, 8, [WHOLE])
    assert all(same(averages(residuals, step=9), alone))
    residuals = Residuals()
    averages(residuals)
    assert all(same(averages(residuals, step=8), alone))
    residuals.commit(9, 4, 9, [WHOLE])
    assert all(same(averages(residuals, step=9), alone)), "of another host's round"


def test_a_commit_that_is_said_again_changes_nothing() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    for step in (8, 8, 7):
        residuals.commit(step, 3, step, [WHOLE])
    assert not any(same(averages(residuals, step=8), alone))


def test_spans_of_two_attempts_make_one_update() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    averages(residuals, attempt=2)
    residuals.commit(8, 3, 8, [(1, 0, 1), (2, 1, GRID.chunks)])
    assert not any(same(averages(residuals, step=8), alone))


def test_the_codec_may_change_and_nothing_is_kept_of_what_is_exact_enough() -> None:
    residuals, alone = Residuals(), averages(Residuals(), codec="fp16")
    averages(residuals)
    residuals.commit(8, 3, 8, [WHOLE])
    assert not any(same(averages(residuals, step=8, codec="fp16"), alone)), "what four bits lost is in the halves"
    residuals.commit(9, 3, 9, [WHOLE])
    assert all(same(averages(residuals, step=9, codec="fp16"), alone))


def test_it_costs_two_vectors_of_the_share_at_most() -> None:
    residuals = Residuals()
    for step in range(7, 12):
        averages(residuals, step=step)
        held = [*residuals._kept.values(), *residuals._open.values()]
        assert sum(values.nbytes for values in held) <= 2 * 4 * GRID.elements
        residuals.commit(step + 1, 3, step + 1, [WHOLE])
    assert sum(values.nbytes for values in residuals._kept.values()) == 4 * GRID.elements


def test_after_a_rollback_nothing_of_before_is_added_and_steps_are_made_again() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    residuals.commit(8, 3, 8, [WHOLE])
    residuals.commit(9, 3, 7, [])  # back to step 7
    assert all(same(averages(residuals, step=7), alone))
    residuals.commit(10, 3, 8, [WHOLE])
    assert not any(same(averages(residuals, step=8), alone)), "what this one lost is in the next"
