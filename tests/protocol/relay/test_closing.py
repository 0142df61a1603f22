"""When a chunk closes, and which slots it includes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol import timing
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import Weight
from peer_agent.protocol.relay.closing import Closing, Coverage
from peer_agent.protocol.timing import LEAST_S
from tests.protocol.relay.stage import TOKENS, plan_of

PLAN = plan_of().plan
IN_TIME = plan_of(duration_s=40.0, sigma=0.1).plan  # one chunk every ten seconds, and a wait of four


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)


def coverage() -> Coverage:
    return Coverage(PLAN.slots, PLAN.spans)


def test_a_chunk_closes_when_every_planned_slot_has_come() -> None:
    here = coverage()
    assert here.add(0, 1) == []
    assert here.add(2, 1) == []
    assert here.add(1, 1) == [Closing(1, 1000)]
    assert here.included(PLAN.spans[0])[1] == Included(1, 2, (0, 1, 2))


def test_a_slot_that_is_dropped_stays_where_it_has_come() -> None:
    here = coverage()
    for slot, chunk in ((2, 0), (0, 0), (0, 1), (1, 0), (1, 1)):
        here.add(slot, chunk)
    assert here.drop(2) == [Closing(1, 800)]
    assert here.included(PLAN.spans[0]) == (Included(0, 1, (0, 1, 2)), Included(1, 2, (0, 1)))
    assert here.is_complete(PLAN.spans[0])
    assert not here.is_complete(PLAN.spans[1])
    assert here.drop(2) == []


def test_below_seventy_percent_of_the_tokens_a_chunk_stays_open() -> None:
    slots = (replace(PLAN.slots[0], weights=(Weight(0, 4, 700),)), replace(PLAN.slots[1], weights=(Weight(0, 4, 301),)))
    for tokens, closes in ((300, True), (301, False)):
        here = Coverage((slots[0], replace(slots[1], weights=(Weight(0, 4, tokens),))), PLAN.spans)
        here.add(0, 0)
        assert bool(here.drop(1)) is closes


def test_weightless_slot_is_neither_asked_nor_awaited_in_a_chunk() -> None:
    partial = replace(PLAN.slots[2], weights=(Weight(0, 1, 200), Weight(1, 4, 0)))
    here = Coverage((*PLAN.slots[:2], partial), PLAN.spans)
    assert here.asks_for(2, 0)
    assert not here.asks_for(2, 1)
    here.add(0, 1)
    assert here.add(1, 1) == [Closing(1, 800)]


def test_who_is_ahead_of_the_slowest_that_still_moves_is_ahead() -> None:
    here = coverage()  # four chunks, three slots
    for slot, chunks, at in ((0, 2, 3.0), (1, 2, 2.0), (2, 1, 1.0)):
        for chunk in range(chunks):
            here.add(slot, chunk, at)
    assert here.is_ahead(0, 0.2, 0.0)
    assert here.is_ahead(1, 0.2, 1.0)
    assert not here.is_ahead(0, 0.25, 0.0), "no further than it may be"
    assert not here.is_ahead(2, 0.2, 0.0)
    assert not here.is_ahead(0, 0.2, 1.5), "of the third nothing came since then"
    here.add(2, 1, 4.0)
    assert not here.is_ahead(0, 0.2, 0.0)


def test_who_is_dropped_keeps_nobody_back() -> None:
    here = coverage()
    for slot, chunks in ((0, 3), (1, 3), (2, 1)):
        for chunk in range(chunks):
            here.add(slot, chunk, 1.0)
    assert here.is_ahead(0, 0.2, 0.0)
    here.drop(2)
    assert not here.is_ahead(0, 0.2, 0.0)


def test_who_is_late_by_plan_is_not_ahead_of_anybody() -> None:
    here = coverage()
    for slot, chunks in ((0, 3), (1, 3), (2, 1)):
        for chunk in range(chunks):
            here.add(slot, chunk, 1.0)
    assert here.is_ahead(0, 0.2, 0.0, 0.7)
    assert not here.is_ahead(0, 0.2, 0.0, 0.75), "it is to have sent so much by now"


def test_chunks_that_closed_without_a_slot_are_behind_it() -> None:
    here = Coverage(IN_TIME.slots, IN_TIME.spans)
    for slot, chunks in ((0, 4), (1, 4), (2, 2)):
        for chunk in range(chunks):
            here.add(slot, chunk, 1.0)
    assert here.is_ahead(0, 0.2, 0.0)
    assert len(here.close_late(IN_TIME, 100.0)) == 2
    assert not here.is_ahead(0, 0.2, 0.0)


def test_only_the_chunks_of_its_own_spans_are_asked_for() -> None:
    here = Coverage(PLAN.slots, PLAN.spans[1:])
    assert [here.asks_for(0, chunk) for chunk in range(5)] == [False, False, True, True, False]
    assert not here.asks_for(3, 2)
    here.add(1, 3)
    assert here.received(1) == (3,)
    assert here.progress() == ((0, 0), (1, 1), (2, 0))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=40))
def test_it_is_what_counting_says(steps: list[tuple[int, int, bool]]) -> None:
    here, came, dropped, closed = coverage(), set[tuple[int, int]](), set[int](), dict[int, int]()
    for slot, chunk, drops in steps:
        if drops:
            told = here.drop(slot)
            dropped.add(slot)
        elif here.asks_for(slot, chunk) and not here.has(slot, chunk):
            told = here.add(slot, chunk)
            came.add((slot, chunk))
        else:
            continue
        for closing in told:
            assert closing.chunk not in closed, "closed twice"
            closed[closing.chunk] = closing.tokens
        for place in range(4):
            members = {s for s in range(3) if (s, place) in came}
            tokens = sum(TOKENS[s] for s in members)
            assert (place in closed) == (members | dropped == {0, 1, 2} and tokens >= 700)
            assert closed.get(place, tokens) == tokens, "nothing is taken into a closed chunk"


# Deadlines


def test_late_slot_misses_that_chunk_and_is_awaited_in_the_next() -> None:
    here = coverage()
    here.add(0, 0, 1.0)
    here.add(1, 0, 2.0)
    assert here.close_late(IN_TIME, 13.9) == []
    assert here.close_late(IN_TIME, 14.0) == [Closing(0, 800)]
    assert here.close_late(IN_TIME, 14.0) == []
    assert not here.asks_for(2, 0), "what comes late is ignored"
    assert here.asks_for(2, 1)
    assert here.received(2) == (0,), "and need not be sent"
    assert here.progress() == ((0, 1), (1, 1), (2, 1))
    for slot in range(3):
        here.add(slot, 1, 20.0)
    assert here.included(PLAN.spans[0]) == (Included(0, 1, (0, 1)), Included(1, 2, (0, 1, 2)))
    assert here.is_complete(PLAN.spans[0])


def test_too_few_are_never_too_late() -> None:
    here = coverage()
    here.add(0, 0, 1.0)  # half of the tokens
    here.add(0, 1, 1.0)
    here.add(2, 1, 1.0)  # seven tenths of the tokens
    assert here.close_late(IN_TIME, 1e6) == [Closing(1, 700)]
    here.add(2, 0, 1e6)
    assert here.close_late(IN_TIME, 1e6) == [], "it is waited for from when there were enough"
    assert here.close_late(IN_TIME, 1.2e6) == [Closing(0, 700)]


def test_without_deadlines_a_chunk_is_waited_for() -> None:
    here = coverage()
    here.add(0, 0, 1.0)
    here.add(1, 0, 1.0)
    assert here.close_late(plan_of(duration_s=40.0).plan, 1e6) == []


def test_slot_dropped_after_being_late_is_counted_once() -> None:
    here = coverage()
    for slot in range(2):
        here.add(slot, 0, 1.0)
        here.add(slot, 1, 1.0)
    assert here.close_late(IN_TIME, 14.0) == [Closing(0, 800)]
    assert here.drop(2) == [Closing(1, 800)]
    here.add(1, 2, 30.0)
    assert here.add(0, 2, 30.0) == [Closing(2, 800)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.floats(0.0, 9.0)), max_size=40))
def test_chunk_closes_only_with_a_quorum_and_every_timely_slot(steps: list[tuple[int, int, float]]) -> None:
    """A slot is included if it arrives within a tenth of the plan's time after the later of its planned time and the
    quorum.
    """
    here, came, now = coverage(), dict[tuple[int, int], float](), 0.0
    for slot, chunk, later_s in steps:
        now += later_s
        closing = here.close_late(IN_TIME, now)
        for each in closing:
            members = {s for s in range(3) if (s, each.chunk) in came}
            assert sum(TOKENS[s] for s in members) == each.tokens >= 700
            enough = _enough_at(came, each.chunk)
            assert now >= max(10.0 * (each.chunk + 1), enough) + max(4.0, LEAST_S)
        if here.asks_for(slot, chunk) and not here.has(slot, chunk):
            here.add(slot, chunk, now)
            came[slot, chunk] = now
        for span in PLAN.spans:
            said = {c: part.slots for part in here.included(span) for c in range(part.first, part.stop)}
            assert said == {c: tuple(s for s in range(3) if (s, c) in came) for c in range(span.first, span.stop)}


def _enough_at(came: dict[tuple[int, int], float], chunk: int) -> float:
    tokens = 0
    for at, slot in sorted((at, slot) for (slot, place), at in came.items() if place == chunk):
        tokens += TOKENS[slot]
        if tokens >= 700:
            return at
    raise AssertionError("there were never enough")


def test_a_chunk_is_waited_for_until_its_batch_was_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reducer with few chunks receives them all in one batch, later than each chunk's planned time."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 128 * 1024)
    here = Coverage(IN_TIME.slots, IN_TIME.spans)
    for slot in (0, 2):
        here.add(slot, 0, 5.0)
    assert here.close_late(IN_TIME, 43.9) == [], "four chunks in 40 seconds, and four to wait"
    assert [each.chunk for each in here.close_late(IN_TIME, 44.1)] == [0]


def in_time_but(*late: tuple[int, int, float]) -> Coverage:
    """Add every chunk at its planned time, except those in `late`: (slot, chunk, seconds later)."""
    here, later_s = coverage(), {(slot, chunk): seconds for slot, chunk, seconds in late}
    for chunk in range(4):
        for slot in range(3):
            here.add(slot, chunk, 10.0 * (chunk + 1) + later_s.get((slot, chunk), 0.0))
    return here


@pytest.mark.parametrize("chunk", range(4))
def test_a_slot_is_as_late_as_its_latest_chunk_wherever_that_is(chunk: int) -> None:
    assert in_time_but((2, chunk, 3.0)).lateness(IN_TIME) == pytest.approx((0, 0, 3 / 40))
    assert in_time_but((2, (chunk + 1) % 4, 1.0), (2, chunk, 3.0)).lateness(IN_TIME) == pytest.approx((0, 0, 3 / 40))


def test_where_all_are_late_nobody_is() -> None:
    assert in_time_but((0, 1, 9.0), (1, 1, 9.5), (2, 1, 9.0)).lateness(IN_TIME) == pytest.approx((0, 0.5 / 40, 0))
    slow = in_time_but((0, 1, 60.0), (1, 1, 60.0), (2, 1, 68.0))
    assert slow.lateness(IN_TIME) == pytest.approx((0, 0, 8 / 80)), "a part of the time that it took"


def test_who_came_early_is_not_late() -> None:
    assert in_time_but((2, 3, -35.0)).lateness(IN_TIME) == (0, 0, 0)


def test_where_a_chunk_is_missing_it_is_as_late_as_is_waited_for() -> None:
    here = coverage()
    for chunk in range(4):
        for slot in (0, 1) if chunk == 2 else range(3):
            here.add(slot, chunk, 10.0 * (chunk + 1))
    here.close_late(IN_TIME, 34.0)
    assert here.lateness(IN_TIME) == pytest.approx((0, 0, 0.1))


def test_weightless_chunk_or_missing_deadline_makes_no_slot_late() -> None:
    partial = replace(PLAN.slots[2], weights=(Weight(0, 1, 200), Weight(1, 4, 0)))
    here = Coverage((*PLAN.slots[:2], partial), PLAN.spans)
    for chunk in range(4):
        for slot in (0, 1, 2) if chunk == 0 else (0, 1):
            here.add(slot, chunk, 10.0 * (chunk + 1))
    assert here.lateness(IN_TIME) == (0, 0, 0)
    assert in_time_but((2, 1, 3.0)).lateness(plan_of().plan) == (0, 0, 0)
