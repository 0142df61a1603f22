"""One relay's part in an attempt: the weighted mean for any order of events, and every reason to refuse a message."""

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from peer_agent.averaging.codecs import Floats, decode, encode, sum_squares
from peer_agent.averaging.contributor import Sending
from peer_agent.averaging.reducer import ClosedSpan, Reduction, Residuals
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.merkle import leaf_of, pack_leaves, root_of
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import Plan, Weight
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import OpenPlan
from peer_agent.protocol.wire import Frame, Kind
from tests.averaging.driver import Driver, Result, closed_by
from tests.averaging.rounds import (
    GRID,
    RELAY,
    averaged,
    contributor,
    frame,
    frames_of,
    plan_of,
    reduction_of,
)

TOKENS = (700, 100, 1300, 50)
CODECS: tuple[Codec, ...] = ("fp32", "fp16", "int8", "fp16")
SENDINGS = [contributor(i, tokens).offer(codec) for i, (tokens, codec) in enumerate(zip(TOKENS, CODECS, strict=True))]
SCALES = (1.0, 0.25, 1.0, 1.0)
PLAN = plan_of(SENDINGS, scales=SCALES)
FRAMES = [f for slot, sending in enumerate(SENDINGS) for f in frames_of(PLAN, slot, sending)]


def weighted_mean(chunk: int, slots: Sequence[int]) -> NDArray[np.float64]:
    """Return the token-weighted average of these slots in float64. Clipping scales multiply only the numerator."""
    total = np.zeros(GRID.length(chunk))
    for slot in slots:
        values = decode(SENDINGS[slot].codec, SENDINGS[slot].payloads[chunk], GRID.length(chunk))
        total += values.astype(np.float64) * TOKENS[slot] * SCALES[slot]
    return total / sum(TOKENS[slot] for slot in slots)


def is_weighted_mean(values: Floats, chunk: int, slots: Sequence[int]) -> bool:
    return bool(np.abs(values - weighted_mean(chunk, slots)).max() < 1e-6)


def only_chunks(closed: list[Result]) -> list[tuple[int, bytes | memoryview]]:
    return [c for c in closed if not isinstance(c, ClosedSpan)]


def only_spans(closed: list[Result]) -> list[ClosedSpan]:
    return [c for c in closed if isinstance(c, ClosedSpan)]


def included_in(spans: list[ClosedSpan]) -> dict[int, tuple[int, ...]]:
    return {c: r.slots for span in spans for r in span.included for c in range(r.first, r.stop)}


def fault_of(reduction: Driver, bad: Frame) -> str:
    result = reduction.add(bad)
    assert isinstance(result, str)
    return result


# Averaging


def test_everybody_in_any_grid_order_is_the_weighted_mean() -> None:
    spans, payloads = averaged(PLAN, SENDINGS)
    for chunk in GRID:
        assert is_weighted_mean(decode("fp32", payloads[chunk], GRID.length(chunk)), chunk, (0, 1, 2, 3))
    assert [span.included for span in spans] == [
        (Included(0, 2, (0, 1, 2, 3)),),
        (Included(2, 5, (0, 1, 2, 3)),),
    ]


def test_the_check_would_find_an_unweighted_mean() -> None:
    decoded = [decode(s.codec, s.payloads[0], GRID.length(0)) for s in SENDINGS]
    assert not is_weighted_mean(np.mean(decoded, axis=0, dtype=np.float32), 0, (0, 1, 2, 3))


def test_the_scale_is_in_the_numerator_alone() -> None:
    """Dividing by the scaled weights would give the clipped peer's neighbours more than their share (rule 12)."""
    scaled = sum(tokens * scale for tokens, scale in zip(TOKENS, SCALES, strict=True))
    wrong = (weighted_mean(0, (0, 1, 2, 3)) * sum(TOKENS) / scaled).astype(np.float32)
    assert not is_weighted_mean(wrong, 0, (0, 1, 2, 3))


@settings(max_examples=40)
@given(st.permutations(FRAMES), st.lists(st.sampled_from(FRAMES), max_size=8), st.integers(0, len(FRAMES)))
def test_order_and_repetition_change_nothing(order: list[Frame], repeated: list[Frame], place: int) -> None:
    closed = closed_by(reduction_of(PLAN, SENDINGS), [*order[:place], *repeated, *order[place:], *repeated])
    assert sorted(chunk for chunk, _ in only_chunks(closed)) == list(GRID)
    for chunk, payload in only_chunks(closed):
        assert is_weighted_mean(decode("fp32", payload, GRID.length(chunk)), chunk, (0, 1, 2, 3))


@settings(max_examples=40)
@given(st.permutations(FRAMES), st.dictionaries(st.integers(0, 3), st.integers(0, len(FRAMES)), max_size=3))
def test_a_drop_is_obeyed_from_the_next_open_chunk(order: list[Frame], drops: dict[int, int]) -> None:
    """An open chunk keeps the data that it has already received from a dropped slot. A chunk without a quorum stays
    open.
    """
    reduction, closed = reduction_of(PLAN, SENDINGS), list[Result]()
    came: dict[int, set[int]] = {chunk: set() for chunk in GRID}
    for place, each in enumerate([*order, None]):
        for slot in (slot for slot, at in drops.items() if at == place):
            closed += reduction.drop(slot)
        if each is not None:
            closed += closed_by(reduction, [each])
            if place < drops.get(each.slot, len(order) + 1):
                came[each.chunk].add(each.slot)
    expected = {c: tuple(sorted(s)) for c, s in came.items() if sum(TOKENS[i] for i in s) >= 0.7 * sum(TOKENS)}
    assert {chunk for chunk, _ in only_chunks(closed)} == set(expected)
    for chunk, payload in only_chunks(closed):
        assert is_weighted_mean(decode("fp32", payload, GRID.length(chunk)), chunk, expected[chunk])
    assert included_in(only_spans(closed)).items() <= expected.items()


@pytest.mark.parametrize("codec_down", get_args(Codec))
def test_a_closed_span_commits_to_its_bytes(codec_down: Codec) -> None:
    plan = replace(PLAN, codec_down=codec_down)
    for span, payloads in [(span, averaged(plan, SENDINGS)[1]) for span in averaged(plan, SENDINGS)[0]]:
        chunks = range(span.first, span.stop)
        decoded = [decode(codec_down, payloads[c], GRID.length(c)) for c in chunks]
        leaves = tuple(leaf_of(payloads[c], sum_squares(v)) for c, v in zip(chunks, decoded, strict=True))
        assert (span.leaves, span.root) == (leaves, root_of(leaves))
        assert list(span.payloads) == [payloads[c] for c in chunks]
        assert math.isclose(span.sum_squares, float(np.sum(np.concatenate(decoded).astype(np.float64) ** 2)))


def test_one_contributor_is_averaged_too() -> None:
    sending = contributor(8, 40).offer("fp32")
    _, payloads = averaged(plan_of([sending]), [sending])
    assert np.allclose(decode("fp32", payloads[0], 1024), decode("fp32", sending.payloads[0], 1024), rtol=1e-6)


def test_a_slot_without_weight_in_a_chunk_is_not_waited_for() -> None:
    partial = replace(SENDINGS[1], weights=(Weight(0, 1, 100), Weight(1, 5, 0)))
    sendings = [SENDINGS[0], partial]
    spans, payloads = averaged(plan_of(sendings), sendings)
    assert included_in(spans) == {0: (0, 1), 1: (0,), 2: (0,), 3: (0,), 4: (0,)}
    alone = decode("fp32", payloads[1], GRID.length(1))
    assert np.allclose(alone, decode("fp32", SENDINGS[0].payloads[1], GRID.length(1)), rtol=1e-6)


def test_sums_are_freed_as_chunks_close() -> None:
    reduction, most = reduction_of(PLAN, SENDINGS), 0
    for each in sorted(FRAMES, key=lambda f: (f.chunk, f.slot)):
        reduction.add(each)
        most = max(most, len(reduction.reduction._open))
    assert most == 1
    assert not reduction.reduction._open
    assert not reduction.reduction._payloads


def test_span_keeps_chunk_order_whatever_order_chunks_close_in() -> None:
    """If the log stored payloads in the order in which chunks close, it would return the wrong bytes."""
    backwards = sorted(FRAMES, key=lambda f: (-f.chunk, f.slot))
    spans = only_spans(closed_by(reduction_of(PLAN, SENDINGS), backwards))
    payloads = averaged(PLAN, SENDINGS)[1]
    for span in spans:
        assert [bytes(payload) for payload in span.payloads] == [payloads[c] for c in range(span.first, span.stop)]


def test_a_chunk_outside_of_a_slots_ranges_weighs_nothing() -> None:
    partial = replace(SENDINGS[1], weights=(Weight(1, 2, 100),))
    reduction = reduction_of(plan_of([SENDINGS[0], partial]), [SENDINGS[0], partial]).reduction
    for chunk, is_in in ((0, False), (1, True), (3, False)):
        assert reduction.add(1, chunk, partial.payloads[chunk]) is None
        assert reduction._open[chunk].tokens == (100 if is_in else 0)


def test_sum_buffers_of_closed_chunks_are_reused_cleanly() -> None:
    reduction = reduction_of(PLAN, SENDINGS).reduction
    wanted = averaged(PLAN, SENDINGS)[1]
    for chunk in (0, 1, 4, 2):
        for slot, sending in enumerate(SENDINGS):
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
        assert bytes(reduction.close(chunk, sum(TOKENS))) == wanted[chunk]
        assert len(reduction._spare) == 1


# Progress and reconnects


# Frames that are ignored: they belong to another attempt, or were not requested


@pytest.mark.parametrize(
    "change",
    [
        {"run": RunId("cd" * 16)},
        {"step": 6},
        {"fence": 2},
        {"attempt": 2},
        {"span": 1},  # a frame of chunk 0 that names another span; chunk 0 is in span 0
        {"span": 9},
        {"chunk": 2},
        {"chunk": 70_000},
        {"slot": 4},
        {"kind": Kind.AVERAGE},
    ],
)
def test_frames_outside_the_plan_are_ignored(change: dict[str, object]) -> None:
    reduction = reduction_of(PLAN, SENDINGS)
    assert reduction.add(replace(FRAMES[0], **change)) == []
    assert reduction.progress() == ((0, 0), (1, 0), (2, 0), (3, 0))


# Refusals


def test_corrupted_byte_is_refused_and_leaves_the_sum_unchanged() -> None:
    driver, data = reduction_of(PLAN, SENDINGS), bytearray(FRAMES[0].payload)
    data[100] ^= 1
    fault = driver.reduction.add(0, 0, bytes(data))
    assert fault is not None
    assert fault.code == "E211"
    closed = closed_by(driver, FRAMES)
    assert is_weighted_mean(decode("fp32", dict(only_chunks(closed))[0], 1024), 0, (0, 1, 2, 3))


def test_a_swapped_chunk_is_refused() -> None:
    assert fault_of(reduction_of(PLAN, SENDINGS), replace(FRAMES[0], payload=FRAMES[1].payload)) == "E211"


def test_duplicate_chunk_with_other_bytes_is_refused() -> None:
    for other in (FRAMES[1].payload, bytes(len(FRAMES[0].payload))):
        reduction = reduction_of(PLAN, SENDINGS)
        assert reduction.add(FRAMES[0]) == []
        assert reduction.add(FRAMES[0]) == []
        assert fault_of(reduction, replace(FRAMES[0], payload=other)) == "E211"


def lying(payload: bytes, sum_of_squares: float) -> tuple[Plan, Sending]:
    """Build a contributor that commits to `payload` and to `sum_of_squares` for chunk 0, and a plan with that
    contributor."""
    honest = contributor(1, 100).offer("fp32")
    leaves = [leaf_of(payload, sum_of_squares), *honest.leaves[1:]]
    norm = math.sqrt(sum(leaf.sum_squares for leaf in leaves))
    liar = replace(honest, payloads=[payload, *honest.payloads[1:]], leaves=leaves, root=root_of(leaves), norm=norm)
    return plan_of([liar]), liar


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    payload = np.full(1024, bad, "<f4").tobytes()
    plan, liar = lying(payload, 1.0)
    assert fault_of(reduction_of(plan, [liar]), frame(plan, 0, 0, 0, payload)) == "E212"


def test_values_that_would_overflow_the_sum_are_refused() -> None:
    values = np.full(1024, 1e37, np.float32)
    plan, liar = lying(encode("fp32", values), sum_squares(values))
    assert fault_of(reduction_of(plan, [liar]), frame(plan, 0, 0, 0, liar.payloads[0])) == "E212"


def test_values_larger_than_committed_are_refused() -> None:
    """A peer must not be able to offer a small norm and then send a large vector (rule 12)."""
    values = np.full(1024, 1000, np.float32)
    plan, liar = lying(encode("fp32", values), 1.0)
    assert fault_of(reduction_of(plan, [liar]), frame(plan, 0, 0, 0, liar.payloads[0])) == "E211"


def test_leaves_must_add_up_to_the_offered_norm() -> None:
    """A peer that sends honest leaves must not escape the bound of rule 12 by offering a smaller norm."""
    honest = contributor(1, 100).offer("fp32")
    plan = plan_of([replace(honest, norm=honest.norm / 2)])
    assert Driver(plan, RELAY).leaves(0, pack_leaves(honest.leaves)) == "E211"


def leaves_fault(data: bytes, slot: int = 0) -> str:
    return Driver(PLAN, RELAY).leaves(slot, data)


def test_leaves_must_be_the_ones_under_the_offered_root() -> None:
    packed = pack_leaves(SENDINGS[0].leaves)
    assert leaves_fault(pack_leaves(SENDINGS[1].leaves)) == "E211"
    assert leaves_fault(packed[:-40]) == "E211"
    assert leaves_fault(packed[40:] + packed[:40]) == "E211"
    assert leaves_fault(packed[:-1]) == "E211"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_leaves_of_values_that_are_not_finite_are_refused(bad: float) -> None:
    plan, liar = lying(bytes(4096), bad)
    assert Driver(plan, RELAY).leaves(0, pack_leaves(liar.leaves)) == "E212"


@given(st.binary(max_size=300))
def test_any_payload_is_a_result(data: bytes) -> None:
    grid = Grid(20, 16)
    sending = contributor(3, 10, grid).offer("fp16")
    plan = plan_of([sending], grid=grid, cuts=(0, 2), reducers=(RELAY,))
    result = reduction_of(plan, [sending]).add(frame(plan, 0, 0, 0, data))
    assert isinstance(result, str)
    assert (result == "E207") == (len(data) != encoded_size("fp16", 16))


SENT = [contributor(seed, 100 + seed).offer("fp32") for seed in range(2)]
WHOLE = (1, 0, GRID.chunks)  # (attempt, first chunk, end) of everything that attempt 0 averaged


def averages(residuals: Residuals, *, step: int = 7, codec: Codec = "int4", attempt: int = 1) -> list[Floats]:
    """Run an attempt in which one reducer averages all the chunks. Return, by chunk, the averages that receivers
    decode.
    """
    plan = replace(plan_of(SENT, codec_down=codec, cuts=(0, GRID.chunks), attempt=attempt), step=step)
    reduction = reduction_with(plan, residuals)
    tokens = sum(sending.weights[0].tokens for sending in SENT)
    for slot, sending in enumerate(SENT):
        for chunk in GRID:
            assert reduction.add(slot, chunk, sending.payloads[chunk]) is None
    return [decode(codec, reduction.close(chunk, tokens), GRID.length(chunk)) for chunk in GRID]


def reduction_with(plan: Plan, residuals: Residuals) -> Reduction:
    reduction = Reduction(OpenPlan(plan, plan.slots), residuals)
    for slot, sending in enumerate(SENT):
        assert reduction.leaves(slot, pack_leaves(sending.leaves)) is None
    return reduction


def exact() -> list[Floats]:
    return averages(Residuals(), codec="fp32")


def same(one: list[Floats], other: list[Floats]) -> list[bool]:
    return [bool((a == b).all()) for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_what_is_lost_comes_with_the_next_average(codec: Codec) -> None:
    """Over any number of rounds, the sum of the sent averages stays within one rounding error of the sum of the exact
    averages.
    """
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
    residuals.commit(8, 3, 8, [(2, 0, GRID.chunks)])  # this reducer took no part in attempt 2
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


def test_residual_survives_a_codec_change_and_ends_once_exact() -> None:
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


def test_rollback_clears_residuals_until_steps_are_made_again() -> None:
    residuals, alone = Residuals(), averages(Residuals())
    averages(residuals)
    residuals.commit(8, 3, 8, [WHOLE])
    residuals.commit(9, 3, 7, [])  # the run is rolled back to step 7
    assert all(same(averages(residuals, step=7), alone))
    residuals.commit(10, 3, 8, [WHOLE])
    assert not any(same(averages(residuals, step=8), alone)), "what this one lost is in the next"
