"""A contributor's accumulator: freezing, settlement, and conservation of every gradient that is not yet averaged."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats, decode, encode, sum_squares
from peer_agent.averaging.contributor import Accumulator, NotFinite, Sending
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.merkle import leaf_of, root_of
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.recipe import Codec
from tests.averaging.rounds import GRID, Holder, contributor, gradient

EVERYTHING = [(0, GRID.chunks)]


def only(*chunks: int) -> list[tuple[int, int]]:
    return [(chunk, chunk + 1) for chunk in chunks]


def sent_times_weight(sending: Sending) -> NDArray[np.float64]:
    """Return each element's decoded value times its token weight, which is the term that a reducer adds."""
    parts = []
    for weight in sending.weights:
        for chunk in range(weight.first, weight.stop):
            values = decode(sending.codec, sending.payloads[chunk], GRID.length(chunk))
            parts.append(values.astype(np.float64) * weight.tokens)
    return np.concatenate(parts)


def held_by(accumulator: Holder) -> Floats:
    return accumulator.floats._sum.copy()


def test_the_offers_digest_covers_what_a_reducer_will_decode() -> None:
    sending = contributor(1, 100).offer("int8")
    decoded = [decode("int8", data, GRID.length(c)) for c, data in enumerate(sending.payloads)]
    leaves = [leaf_of(data, sum_squares(v)) for data, v in zip(sending.payloads, decoded, strict=True)]
    assert (sending.leaves, sending.root) == (leaves, root_of(leaves))
    assert math.isclose(sending.norm, float(np.linalg.norm(np.concatenate(decoded).astype(np.float64))))


@pytest.mark.parametrize("codec", get_args(Codec))
def test_chunks_encoded_in_batches_match_chunks_encoded_alone(codec: Codec) -> None:
    grid = Grid(70 * 1024 + 9, 1024)
    weights = [Weight(0, 3, 7), Weight(3, 5, 0), Weight(5, 66, 1000), Weight(66, 71, 3)]
    accumulator, total = Accumulator(grid), gradient(3, grid)
    accumulator.add(total)
    sending = accumulator.offer(codec, weights)
    tokens = [weight.tokens for weight in weights for _ in range(weight.first, weight.stop)]
    for chunk in grid:
        start, stop = grid.bounds(chunk)
        mean = total[start:stop] / np.float32(tokens[chunk]) if tokens[chunk] else np.zeros(stop - start, np.float32)
        assert sending.payloads[chunk] == encode(codec, mean)
        leaf = leaf_of(sending.payloads[chunk], sum_squares(decode(codec, sending.payloads[chunk], stop - start)))
        assert sending.leaves[chunk] == leaf


def test_an_offer_is_frozen_and_resent_as_it_was() -> None:
    accumulator = contributor(1, 100)
    sending = accumulator.offer("fp16")
    with pytest.raises(RuntimeError, match="frozen"):
        accumulator.add(gradient(2), 1)
    with pytest.raises(RuntimeError, match="fp16"):
        accumulator.offer("int8")
    with pytest.raises(RuntimeError, match="already offered"):
        accumulator.floats.offer("fp16", [Weight(0, 5, 101)])
    assert accumulator.offer("fp16") is sending is accumulator.floats.sending


@pytest.mark.parametrize("action", ["remove_averaged", "release"])
def test_nothing_can_be_settled_before_an_offer(action: str) -> None:
    arguments = [EVERYTHING] if action == "remove_averaged" else []
    with pytest.raises(RuntimeError, match="nothing is offered"):
        getattr(contributor(1, 100).floats, action)(*arguments)


def test_a_void_round_changes_nothing() -> None:
    accumulator = contributor(1, 100)
    before, sending = held_by(accumulator), accumulator.offer("int8")
    accumulator.floats.release()
    again = accumulator.offer("int8")
    assert np.array_equal(held_by(accumulator), before)
    assert (again.payloads, again.weights) == (sending.payloads, sending.weights)
    accumulator.floats.release()
    accumulator.add(gradient(2), 7)
    assert accumulator.offer("fp32").weights == (Weight(0, 5, 107),)


def test_full_precision_leaves_no_residual() -> None:
    accumulator, total, three = Holder(), gradient(1), np.float32(3)
    assert (total - three * (total / three)).any(), "what division rounds away would be left"
    accumulator.add(total, 3)
    accumulator.offer("fp32")
    accumulator.remove_averaged(EVERYTHING)
    assert not held_by(accumulator).any()


def test_what_was_left_out_stays_and_what_was_in_leaves() -> None:
    accumulator = contributor(1, 100)
    before = held_by(accumulator)
    accumulator.offer("fp32")
    accumulator.remove_averaged(only(0, 3))
    assert np.array_equal(held_by(accumulator)[1024:3072], before[1024:3072])
    accumulator.add(gradient(2), 50)
    sending = accumulator.offer("fp32")
    assert sending.weights == (Weight(0, 1, 50), Weight(1, 3, 150), Weight(3, 4, 50), Weight(4, 5, 150))


def test_a_residual_without_tokens_is_sent_as_zeros_and_kept() -> None:
    accumulator = contributor(1, 100)
    accumulator.offer("int8")
    accumulator.remove_averaged(EVERYTHING)
    residual = held_by(accumulator)
    assert residual.any()
    sending = accumulator.offer("int8")
    assert sending.weights == (Weight(0, 5, 0),)
    assert sending.norm == 0
    accumulator.remove_averaged(EVERYTHING)
    assert np.array_equal(held_by(accumulator), residual)


@settings(max_examples=30)
@given(
    st.sampled_from(get_args(Codec)),
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 2**GRID.chunks - 1)), min_size=1, max_size=6),
)
def test_nothing_is_lost_over_rounds(codec: Codec, rounds: list[tuple[int, int]]) -> None:
    """Error feedback: all the averages plus the accumulator's remainder equal the sum of all the gradients ever
    added."""
    accumulator = Holder()
    added, sent = np.zeros(GRID.elements), np.zeros(GRID.elements)
    for seed, (tokens, chunks) in enumerate(rounds):
        values = gradient(seed, scale=tokens)
        added += values
        accumulator.add(values, tokens)
        sending = accumulator.offer(codec)
        included = np.array([bool(chunks >> chunk & 1) for chunk in GRID])
        sent += sent_times_weight(sending) * np.repeat(included, GRID.chunk_elements)[: GRID.elements]
        accumulator.remove_averaged(only(*np.flatnonzero(included).tolist()))
    error = np.abs(sent + held_by(accumulator) - added).max()
    assert error <= 1e-6 * sum(tokens for tokens, _ in rounds) * 5


def test_without_error_feedback_the_conservation_test_would_fail() -> None:
    accumulator = contributor(1, 5000)
    added, sending = held_by(accumulator), accumulator.offer("int8")
    assert np.abs(sent_times_weight(sending) - added).max() > 1e-6 * 5000 * 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_added(bad: float) -> None:
    accumulator = contributor(1, 100)
    before, values = held_by(accumulator), gradient(2)
    values[4999] = bad
    with pytest.raises(NotFinite):
        accumulator.add(values, 5)
    assert np.array_equal(held_by(accumulator), before)


def test_a_sum_that_overflowed_is_not_offered() -> None:
    accumulator = Holder()
    for _ in range(2):
        accumulator.add(np.full(GRID.elements, 3e38, np.float32), 5)
    with pytest.raises(NotFinite):
        accumulator.offer("fp16")
    assert accumulator.floats.sending is None
    with pytest.raises(NotFinite):  # adding also fails while a residual waits for tokens
        accumulator.floats.offer("fp16", [Weight(0, 5, 0)])


@pytest.mark.parametrize("values", [np.zeros(4, np.float32), np.zeros(GRID.elements, np.float64)])
def test_another_shape_or_type_is_a_mistake(values: Floats) -> None:
    with pytest.raises(ValueError, match="a gradient is float32"):
        contributor(1, 100).add(values, 5)
