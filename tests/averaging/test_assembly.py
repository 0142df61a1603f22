"""A trainer uses averaged chunks only if they match the root in the record. It fetches any other chunks from the
log."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.averaging.assembly import Assembly, leaves_of_span, spans_match
from peer_agent.averaging.codecs import Floats, decode
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.log.records import SpanEntry
from peer_agent.protocol.messages import Plan
from peer_agent.protocol.wire import Frame, Kind
from tests.averaging.rounds import GRID, averaged, contributor, frame, plan_of, record_of

SENDINGS = [contributor(1, 700).offer("fp16"), contributor(2, 300).offer("int8")]
PLAN = plan_of(SENDINGS, codec_down="fp16")
SPANS, PAYLOADS = averaged(PLAN, SENDINGS)
RECORD = record_of(PLAN, SPANS)
AVERAGE = np.concatenate([decode("fp16", PAYLOADS[c], GRID.length(c)) for c in GRID])


def frames(plan: Plan = PLAN, payloads: dict[int, bytes] = PAYLOADS) -> list[Frame]:
    return [
        frame(plan, span.span, chunk, 0, payloads[chunk], Kind.AVERAGE)
        for span in plan.spans
        for chunk in range(span.first, span.stop)
    ]


def following(plan: Plan = PLAN) -> Assembly:
    assembly = Assembly(GRID, "fp16")
    assembly.follow(plan)
    return assembly


def is_average(gradient: Floats | list[SpanEntry]) -> bool:
    return isinstance(gradient, np.ndarray) and np.array_equal(gradient, AVERAGE)


def payloads_of(span: int) -> list[bytes]:
    return [PAYLOADS[c] for c in range(RECORD.spans[span].first, RECORD.spans[span].stop)]


@settings(max_examples=20)
@given(st.permutations(frames()))
def test_chunks_in_any_order_make_the_gradient(order: list[Frame]) -> None:
    assembly = following()
    assert all(assembly.keep_chunk(each) for each in order)
    assert not any(assembly.keep_chunk(each) for each in order)
    assert is_average(assembly.gradient(RECORD))


def test_what_has_not_come_is_to_be_fetched() -> None:
    assembly = following()
    for each in frames()[:-1]:
        assembly.keep_chunk(each)
    assert assembly.gradient(RECORD) == [RECORD.spans[1]]
    assembly.fill(RECORD.spans[1], payloads_of(1))
    assert is_average(assembly.gradient(RECORD))


def test_a_replica_that_saw_nothing_replays_from_the_log_alone() -> None:
    assembly = Assembly(GRID, "fp16")
    assert assembly.gradient(RECORD) == list(RECORD.spans)
    for entry in RECORD.spans:
        assembly.fill(entry, [memoryview(data) for data in payloads_of(entry.span)])
    assert is_average(assembly.gradient(RECORD))


def test_bytes_that_the_record_does_not_name_are_never_given_out() -> None:
    """Only this peer received a dead reducer's version of a span. It must not use that version (rule 6)."""
    assembly = following()
    for each in frames(payloads={c: PAYLOADS[0][: len(data)] for c, data in PAYLOADS.items()}):
        assembly.keep_chunk(each)
    assert assembly.gradient(RECORD) == list(RECORD.spans)


def test_a_corrupted_byte_from_the_log_is_refused() -> None:
    assembly, data = Assembly(GRID, "fp16"), bytearray(PAYLOADS[1])
    data[200] ^= 1
    with pytest.raises(Problem, match="E111"):
        assembly.fill(RECORD.spans[0], [PAYLOADS[0], bytes(data)])
    assert assembly.gradient(RECORD) == list(RECORD.spans)


def test_a_span_that_is_refused_changes_nothing_of_what_came() -> None:
    assembly, data = following(), bytearray(PAYLOADS[1])
    for each in frames():
        assembly.keep_chunk(each)
    data[200] ^= 1
    with pytest.raises(Problem, match="E111"):
        assembly.fill(RECORD.spans[0], [PAYLOADS[0], bytes(data)])
    assert is_average(assembly.gradient(RECORD))


def test_valid_root_is_checked_again_when_chunks_change() -> None:
    """A chunk changes when another record's span is filled in, or when a new plan averages the chunk again."""
    other = contributor(7, 10).offer("fp16")
    plan = plan_of([other], codec_down="fp16")
    spans, payloads = averaged(plan, [other])
    assembly = following()
    for each in frames():
        assembly.keep_chunk(each)
    assert is_average(assembly.gradient(RECORD))
    assembly.fill(record_of(plan, spans).spans[1], [payloads[c] for c in range(2, 5)])
    assert assembly.gradient(RECORD) == [RECORD.spans[1]]
    assembly.follow(replace(PLAN, attempt=2, spans=tuple(replace(span, attempt=2) for span in PLAN.spans)))
    assert assembly.gradient(RECORD) == list(RECORD.spans)


@pytest.mark.parametrize(
    "payloads", [[], [PAYLOADS[0]], [PAYLOADS[1], PAYLOADS[0]], [PAYLOADS[0], PAYLOADS[1][:-2]], [b"", b""]]
)
def test_other_chunks_are_not_the_span(payloads: list[bytes]) -> None:
    assert leaves_of_span("fp16", GRID, RECORD.spans[0], payloads) is None


def test_leaves_match_their_own_span_only() -> None:
    assert spans_match(RECORD.spans[0], SPANS[0].leaves)
    assert not spans_match(RECORD.spans[1], SPANS[0].leaves)
    assert not spans_match(RECORD.spans[0], SPANS[0].leaves[:1])


@pytest.mark.parametrize("factor", [0.0, 0.5, 1 + 1e-6, 1e60])
def test_record_with_a_false_sum_of_squares_is_not_applied(factor: float) -> None:
    """A regression: replicas applied whatever clip factor followed from a reducer's false sum."""
    first, *rest = RECORD.spans
    false = replace(first, sum_squares=factor * first.sum_squares)
    assembly = following()
    for each in frames():
        assembly.keep_chunk(each)
    assert assembly.gradient(replace(RECORD, spans=(false, *rest))) == [false]
    with pytest.raises(Problem, match="E111"):
        assembly.fill(false, payloads_of(0))


def test_what_it_holds_names_sums_beside_roots() -> None:
    assembly = following()
    for each in frames():
        assembly.keep_chunk(each)
    assert assembly.holds() == root_of([Leaf(span.root, span.sum_squares) for span in SPANS])


@pytest.mark.parametrize(
    "change",
    [
        {"run": RunId("cd" * 16)},
        {"step": 6},
        {"fence": 2},
        {"attempt": 2},
        {"span": 1},
        {"span": 9},
        {"chunk": 3},
        {"kind": Kind.GRADIENT},
        {"payload": PAYLOADS[0][:-1]},
    ],
)
def test_frames_outside_the_plan_are_ignored(change: dict[str, object]) -> None:
    assert not following().keep_chunk(replace(frames()[0], **change))


def test_without_a_plan_no_frame_is_taken() -> None:
    assert not Assembly(GRID, "fp16").keep_chunk(frames()[0])


def test_new_attempt_keeps_held_spans_and_replaces_the_others() -> None:
    assembly = following()
    stale = {**PAYLOADS, 2: PAYLOADS[3]}
    for each in frames(payloads=stale)[:4]:
        assembly.keep_chunk(each)
    kept = replace(PLAN.spans[0], root=SPANS[0].root)
    again = replace(PLAN, attempt=2, spans=(kept, replace(PLAN.spans[1], span=2, attempt=2)))
    assembly.follow(again)
    assert not any(assembly.keep_chunk(each) for each in frames(payloads=stale))
    for chunk in (2, 3, 4):
        assert assembly.keep_chunk(frame(again, 2, chunk, 0, PAYLOADS[chunk], Kind.AVERAGE))
    record = replace(RECORD, attempt=2, spans=(RECORD.spans[0], replace(RECORD.spans[1], span=2, attempt=2)))
    assert is_average(assembly.gradient(record))


def test_chunks_of_a_kept_span_may_come_after_the_new_plan() -> None:
    assembly = following()
    assembly.follow(replace(PLAN, attempt=2, spans=(replace(PLAN.spans[0], root=SPANS[0].root),)))
    assert assembly.keep_chunk(frames()[0])


def test_another_grid_or_codec_needs_another_assembly() -> None:
    with pytest.raises(ValueError, match="plan"):
        Assembly(Grid(5000, 4096), "fp16").follow(PLAN)
    with pytest.raises(ValueError, match="record"):
        Assembly(GRID, "int8").gradient(RECORD)


@pytest.mark.parametrize("spans", [RECORD.spans[:1], RECORD.spans[1:], RECORD.spans + RECORD.spans[1:]])
def test_a_record_covers_the_vector_once(spans: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="cover"):
        following().gradient(replace(RECORD, spans=spans))
