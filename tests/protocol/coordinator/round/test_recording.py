"""A round's record: whose work it contains, and whether the step is exact."""

from fractions import Fraction
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.recording import _joined, credit_of, rounded
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import ChunkRange, Included, Record, RecordHead, whole_of
from peer_agent.protocol.messages import Slot, Weight
from tests.protocol.coordinator.scenes import left_out, offers_carried, partly, reducing
from tests.protocol.coordinator.stage import TOKENS, UNIT, Stage, sealed

# --- exact


def test_a_step_is_exact_with_fresh_whole_untouched_work() -> None:
    stage, *_ = reducing()
    stage.reduce()
    assert stage.persist().exact


@pytest.mark.parametrize("rule", ["geometric median", "centered clip"])
def test_a_step_of_another_rule_than_the_mean_is_not_exact(rule: str) -> None:
    stage, *_ = reducing(values={"rule": rule})
    assert stage.round.plan is not None
    assert stage.round.plan.rule == rule
    stage.reduce()
    assert not stage.persist().exact


def test_a_clipped_step_is_not_exact() -> None:
    stage, trainers, _ = reducing(norm=1e6)
    stage.reduce()
    record = stage.persist()
    assert not record.exact
    assert [entry.peer for entry in record.contributions if entry.clipped] == [trainers[3].peer]


def test_a_step_with_stale_work_is_not_exact() -> None:
    stage, trainers, _ = reducing()
    stage.lose.add((trainers[0].peer, m.Commit))
    stage.reduce([0])
    stage.persist()
    old = trainers[0]
    assert old.done
    stage.lose.clear()
    old.step, old.index = 1, 1
    stage.report(old)
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    assert any(done.base == 0 for offer in stage.round.offers.values() for done in offer.units)
    stage.reduce()
    assert not stage.persist().exact


def test_a_step_that_left_somebody_out_somewhere_is_not_exact() -> None:
    stage, *_ = reducing()
    (span,) = stage.spans()
    parts = (Included(span.first, 2, (0, 1, 2)), Included(2, span.stop, (0, 1, 2, 3)))
    stage.span_done(span, included=parts)
    assert not stage.persist().exact


def test_a_step_with_carried_work_is_not_exact() -> None:
    """Part of the carried work was computed for the previous step."""
    stage, trainers, weight = left_out(0)
    stage.accumulate()
    assert offers_carried(stage, trainers[0], weight) == []
    stage.offers(*trainers[1:])
    stage.reduce()
    assert not stage.persist().exact


# --- whose work


def test_record_names_every_contributor_its_machine_and_units() -> None:
    stage, trainers, _ = reducing()
    units = [tuple(sorted(trainer.done)) for trainer in trainers]
    stage.reduce()
    record = stage.persist()
    assert [part.person for part in record.contributions] == [trainer.person for trainer in trainers]
    assert [part.machine for part in record.contributions] == [trainer.name for trainer in trainers]
    assert [part.accumulator for part in record.contributions] == [trainer.accumulator for trainer in trainers]
    assert [part.units for part in record.contributions] == units
    assert (record.samples, record.tokens) == (4 * 2 * UNIT, 4 * 2 * UNIT * TOKENS)


def test_whoever_is_gone_is_named_as_it_was_at_the_cut() -> None:
    stage, trainers, _ = reducing()
    stage.handle(e.Lost(trainers[0].peer))
    partly(stage, 0)
    record = stage.persist()
    assert (record.contributions[0].person, record.contributions[0].machine) == ("ann", "ann")


def test_whoever_is_in_no_chunk_is_not_in_the_record() -> None:
    stage, trainers, _ = reducing()
    stage.reduce([1])
    assert [part.peer for part in stage.persist().contributions] == [trainers[slot].peer for slot in (0, 2, 3)]


def test_work_in_half_of_the_chunks_counts_half() -> None:
    stage, *_ = reducing()
    partly(stage, 0)
    half, whole, *_ = stage.persist().contributions
    assert (half.included, whole.included) == ((ChunkRange(4, 8),), (ChunkRange(0, 8),))
    assert (half.credit, half.samples, half.tokens) == (whole.credit // 2, UNIT, UNIT * TOKENS)
    assert half.weight == whole.weight, "what was offered is another number"


def test_the_loss_is_the_mean_over_all_tokens_of_the_round() -> None:
    stage, *_ = reducing(loss_sum=3.5 * 2 * UNIT * TOKENS)
    stage.reduce()
    assert stage.persist().loss == (3 * 2.5 + 3.5) / 4


# --- spans


def test_spans_stand_in_chunk_order_under_their_own_attempt() -> None:
    stage, _, (dead, living) = reducing({}, {})
    for span in stage.spans():
        if span.reducer == living:
            stage.span_done(span)
    stage.handle(e.Lost(dead))
    stage.reduce()
    spans = stage.persist().spans
    assert [(span.first, span.stop, span.attempt) for span in spans] == [(0, 4, 2), (4, 8, 1)]
    assert {span.reducer for span in spans} == {living}
    assert [span.root for span in spans] == [bytes([span.span]).hex() * 32 for span in spans]


def test_neighbours_with_the_same_slots_are_one_part() -> None:
    parts = [Included(0, 2, (0,)), Included(2, 4, (0,)), Included(4, 6, (0, 1)), Included(6, 7, (0,))]
    assert _joined(parts) == [Included(0, 4, (0,)), *parts[2:]]
    apart = [Included(0, 2, (0,)), Included(4, 6, (0,))]
    assert _joined(apart) == apart


# --- what was computed one step before


def overlapped_record(staleness: Literal[0, 1]) -> Record:
    """Return a record in which Ann's first unit was computed one step earlier than all the other units."""
    stage = Stage(batch=16, staleness=staleness)
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    stage.commit(ann, bob)
    stage.accumulate(ann, bob)
    first = min(ann.done)
    ann.done[first] = 0
    stage.report(ann)
    stage.offers(ann, bob)
    stage.reduce()
    return stage.persist()


def test_record_names_units_one_step_old_and_is_not_exact() -> None:
    record = overlapped_record(1)
    assert not record.exact
    stale = {entry.person: entry.stale for entry in record.contributions}
    first = min(unit for entry in record.contributions if entry.person == "ann" for unit in entry.units)
    assert stale == {"ann": (first,), "bob": ()}
    head = msgspec.json.decode(sealed(record).head.payload, type=RecordHead)
    assert whole_of(head, sealed(record).contributions) == record


def test_a_run_with_staleness_0_names_no_stale_units() -> None:
    assert b'"stale":[[' not in sealed(overlapped_record(0)).contributions
    assert b'"stale":[[' in sealed(overlapped_record(1)).contributions


def slot(*weights: Weight) -> Slot:
    return Slot(peer=PeerId("a" * 32), weights=weights, root=bytes(32), norm=1.0, codec="fp32")


def cuts(chunks: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    inner = st.sets(st.integers(1, chunks - 1)) if chunks > 1 else st.just(set())
    return inner.map(lambda edges: list(zip([0, *sorted(edges)], [*sorted(edges), chunks], strict=True)))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Grid, list[Slot], list[Included]]:
    grid = Grid(draw(st.integers(1, 200)), draw(st.integers(1, 30)))
    slots = [
        slot(*(Weight(a, b, draw(st.integers(0, 1000))) for a, b in draw(cuts(grid.chunks))))
        for _ in range(draw(st.integers(1, 5)))
    ]
    every = st.sets(st.integers(0, len(slots) - 1)).map(lambda chosen: tuple(sorted(chosen)))
    return grid, slots, [Included(a, b, draw(every)) for a, b in draw(cuts(grid.chunks))]


@given(rounds())
def test_credit_is_elements_times_tokens_over_the_included(case: tuple[Grid, list[Slot], list[Included]]) -> None:
    grid, slots, included = case
    expected = dict.fromkeys(range(len(slots)), 0)
    for element in range(grid.elements):
        chunk = element // grid.chunk_elements
        part = next(part for part in included if part.first <= chunk < part.stop)
        for number in part.slots:
            weight = next(w for w in slots[number].weights if w.first <= chunk < w.stop)
            expected[number] += weight.tokens
    assert credit_of(slots, included, grid) == expected


def test_the_last_chunk_counts_its_own_length() -> None:
    grid = Grid(10, 4)
    assert credit_of([slot(Weight(0, 3, 5))], [Included(2, 3, (0,))], grid) == {0: 2 * 5}


@given(st.lists(st.fractions(0, 10_000), max_size=20))
def test_rounding_keeps_the_sum_and_moves_nothing_by_one_or_more(values: list[Fraction]) -> None:
    exact = dict(enumerate(values))
    whole = rounded(exact)
    assert sum(whole.values()) == round(sum(values, Fraction(0)))
    assert all(abs(whole[i] - exact[i]) < 1 for i in exact)
    assert all(whole[i] == exact[i] for i in exact if exact[i] == 0), "nobody is credited for nothing"


def test_ties_go_to_the_lower_slot() -> None:
    thirds = {i: Fraction(4, 3) for i in range(3)}
    assert rounded(thirds) == {0: 2, 1: 1, 2: 1}
