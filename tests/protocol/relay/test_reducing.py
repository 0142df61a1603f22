"""A reducer's attempts, slots and spans."""

from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.log.merkle import LEAF
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay import reducing
from peer_agent.protocol.relay.opened import Place
from peer_agent.protocol.relay.reducing import (
    AGAIN_S,
    FIRST_FRAME_S,
    HOLD_S,
    MOVES_S,
    PAUSE_S,
    TRANSITIONS,
    has_deadlines,
    is_ahead,
    move,
)
from peer_agent.protocol.relay.state import Phase, Reducer
from peer_agent.protocol.wire import HEADER, Kind
from tests.protocol.relay.stage import CHUNK, OTHER, RUN, SENDERS, Stage, frame, greeting, named, plan_of, said, told

PLAN = plan_of()
LEAVES = bytes(4 * LEAF.size)


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)


def opened(plan: Any = PLAN) -> Stage:
    """Return a relay with an open attempt. All contributors are linked, and the relay has their leaves."""
    relay = Stage().join().links()
    relay.hear(plan)
    for slot in range(3):
        relay.handle(e.LeavesKept(plan.place, slot))
    return relay


def all_added(relay: Stage, plan: Any = PLAN) -> list[e.Action]:
    return [action for slot in range(3) for action in relay.add(plan, slot, 0, 1, 2, 3)]


def held(plan: Any = PLAN) -> Stage:
    relay = opened(plan)
    all_added(relay, plan)
    for span in range(2):
        relay.handle(e.SpanWritten(plan.place, span, bytes([span]) * 32, 0.5))
    return relay


def idle(_: Any = None) -> Stage:
    return Stage().join().links()


# The table


PLACES = {Phase.IDLE: idle, Phase.REDUCE: opened, Phase.HOLD: held}
NEXT = plan_of(attempt=2)
AWAY = plan_of(attempt=2, reducer=OTHER)
EVENTS: dict[str, list[Any]] = {
    "a plan gives it a part": [NEXT],
    "a plan gives it no part": [AWAY],
    "void": [m.Void(**named(PLAN.place), round=1, reason="")],
    "void of a later attempt": [m.Void(**named(Place(3, 7, 5)), round=1, reason="")],
    "committed": [greeting(step=8)],
    "a new host has begun anew": [greeting(fence=4)],
    "the run is finished": [m.State(run=RUN, state="finished", reason="")],
    "the same plan": [PLAN],
    "an older plan": [plan_of(step=6, attempt=9)],
    "a plan of an older host": [plan_of(fence=2, step=9)],
    "the same host": [greeting()],
    "void of an earlier attempt": [m.Void(**named(Place(3, 7, 0)), round=1, reason="")],
    "void of another step": [m.Void(**named(Place(3, 6, 9)), round=1, reason="")],
    "void of an older host": [m.Void(**named(Place(2, 7, 9)), round=1, reason="")],
    "the run goes on": [m.State(run=RUN, state="waiting", reason="")],
    "words for trainers": [
        m.Lease(run=RUN, fence=3, units=(), quota=1),
        m.AccumulatorRevoked(run=RUN, accumulator=SENDERS[0], reason=""),  # type: ignore[arg-type]
        m.Cut(**named(PLAN.place), round=1, codec="fp32", chunk_elements=16),
        m.Reload(run=RUN, step=7),
        m.Notice(run=RUN, code="E108", text=""),
    ],
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("what", EVENTS)
def test_every_word_in_every_phase(phase: Phase, what: str) -> None:
    relay = PLACES[phase]()
    for message in EVENTS[what]:
        relay.hear(message)
    why = "void" if what.startswith("void of a later") else what
    expected = TRANSITIONS.get((phase, why), phase)
    if phase is Phase.IDLE and what == "the same plan":
        expected = Phase.REDUCE
    assert relay.state.reducer is not None
    assert relay.state.reducer.phase is expected
    assert (relay.attempt is None) == (expected is Phase.IDLE)


def test_move_outside_the_table_is_a_program_error() -> None:
    with pytest.raises(KeyError):
        move(Reducer(phase=Phase.IDLE), "committed")
    with pytest.raises(KeyError):
        move(Reducer(phase=Phase.HOLD), "its last span is written")


def test_every_arrow_leads_on_and_every_phase_is_reached() -> None:
    assert {start for start, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(Phase)


# Attempts


def test_a_plan_opens_to_the_contributors_that_are_here() -> None:
    relay = Stage().join()
    relay.handle(e.Linked(SENDERS[1], Role.TRAINER))
    begin, *rest = relay.hear(PLAN)
    assert begin == e.Begin(PLAN, fresh=True)
    assert told(rest) == [(SENDERS[1], m.Open(**named(PLAN.place), slot=1))]
    assert told(relay.handle(e.Linked(SENDERS[2], Role.TRAINER))) == [
        (SENDERS[2], m.Open(**named(PLAN.place), slot=2)),
    ]


def test_who_comes_back_goes_on_from_what_has_come() -> None:
    relay = opened()
    relay.add(PLAN, 1, 0, 2)
    assert told(relay.handle(e.Linked(SENDERS[1], Role.TRAINER))) == [
        (SENDERS[1], m.Open(**named(PLAN.place), slot=1, received=(0, 2))),
    ]


def test_attempts_of_a_step_share_an_outbox() -> None:
    relay = Stage().join()
    begins = [relay.hear(plan_of(attempt=attempt))[0] for attempt in range(1, 5)]
    assert [begin.fresh for begin in begins if isinstance(begin, e.Begin)] == [True, False, False, False]
    (first, *_) = relay.hear(plan_of(step=8))
    assert first == e.Begin(plan_of(step=8), fresh=True)


def test_a_plan_that_comes_after_its_commit_is_not_taken_up() -> None:
    """A relay that accepted the plan would reduce forever and never report that it is idle."""
    relay = Stage().join(step=8)
    assert relay.hear(PLAN) == []


def test_a_plan_that_comes_after_its_void_is_not_taken_up() -> None:
    relay = Stage().join()
    relay.hear(m.Void(**named(PLAN.place), round=1, reason=""))
    assert relay.hear(PLAN) == []


def test_void_discards_written_spans_and_ends_giving_out() -> None:
    assert held().hear(m.Void(**named(PLAN.place), round=1, reason="")) == [e.End(silent=True), e.Discard(PLAN.place)]


# Slots


def test_a_slot_is_spoken_for_by_its_own_peer() -> None:
    relay = opened()
    assert relay.handle(e.FrameCame(SENDERS[1], frame(PLAN, 0, 0))) == []
    assert relay.handle(e.Asked(SENDERS[1], m.Leaves(**named(PLAN.place), slot=0, leaves=LEAVES))) == []
    assert relay.handle(e.FrameCame(SENDERS[0], frame(PLAN, 0, 0))) == [e.AddChunk(0, 0, again=False)]


@pytest.mark.parametrize(
    "change", [{"step": 6}, {"fence": 2}, {"attempt": 2}, {"span": 1}, {"span": 9}, {"chunk": 2}, {"slot": 1}]
)
def test_frames_outside_the_plan_are_ignored(change: dict[str, Any]) -> None:
    assert opened().handle(e.FrameCame(SENDERS[0], replace(frame(PLAN, 0, 0), **change))) == []
    assert opened().handle(e.FrameCame(SENDERS[0], frame(PLAN, 0, 0, kind=Kind.AVERAGE))) == []


def test_a_chunk_that_comes_again_is_checked_and_added_once() -> None:
    relay = opened()
    relay.add(PLAN, 0, 0)
    assert relay.handle(e.FrameCame(SENDERS[0], frame(PLAN, 0, 0))) == [e.AddChunk(0, 0, again=True)]
    assert relay.add(PLAN, 0, 0, 0) == [], "two are still awaited, however often one comes"
    assert relay.attempt is not None
    assert relay.attempt.coverage.progress()[0] == (0, 1)


def test_leaves_are_kept_once_and_only_as_many_as_the_plan_says() -> None:
    relay = Stage().join().links()
    relay.hear(PLAN)
    leaves = m.Leaves(**named(PLAN.place), slot=0, leaves=LEAVES)
    assert relay.handle(e.Asked(SENDERS[0], leaves)) == [e.KeepLeaves(0, LEAVES)]
    relay.handle(e.LeavesKept(PLAN.place, 0))
    assert relay.handle(e.Asked(SENDERS[0], leaves)) == []
    long = m.Leaves(**named(PLAN.place), slot=1, leaves=LEAVES + bytes(LEAF.size))
    assert [message.code for message in said(relay.handle(e.Asked(SENDERS[1], long)))] == ["E211"]


@pytest.mark.parametrize(
    ("bad", "code"), [({"payload": bytes(63)}, "E207"), ({"payload": bytes(65)}, "E207"), ({}, "E208")]
)
def test_what_the_plan_does_not_allow_is_refused_once(bad: dict[str, Any], code: str) -> None:
    relay = Stage().join().links()
    relay.hear(PLAN)
    refusal = m.SlotRefused(**named(PLAN.place), slot=2, chunk=3, code=code)
    event = e.FrameCame(SENDERS[2], frame(PLAN, 2, 3, **bad))
    assert relay.handle(event) == [e.Say(refusal), e.Tell(SENDERS[2], refusal)]
    assert relay.handle(event) == []
    assert told(relay.handle(e.Linked(SENDERS[2], Role.TRAINER))) == []


def test_a_damaged_chunk_ends_what_is_heard_of_its_slot() -> None:
    relay = opened()
    refusal = m.SlotRefused(**named(PLAN.place), slot=1, chunk=2, code="E211")
    event = e.ChunkRefused(PLAN.place, 1, 2, "E211")
    assert relay.handle(event) == [e.Say(refusal), e.Tell(SENDERS[1], refusal)]
    assert relay.handle(event) == []
    assert relay.handle(e.FrameCame(SENDERS[1], frame(PLAN, 1, 0))) == []


# Chunks and spans


def test_chunks_are_closed_before_the_span_that_they_complete() -> None:
    relay = opened()
    relay.add(PLAN, 0, 0, 1)
    relay.add(PLAN, 1, 0, 1)
    actions = relay.hear(m.Drop(**named(PLAN.place), slot=2))
    assert [type(action) for action in actions] == [e.CloseChunk, e.CloseChunk, e.WriteSpan]
    assert relay.hear(m.Drop(**named(PLAN.place), slot=2)) == []


def test_a_drop_of_another_attempt_or_of_no_slot_changes_nothing() -> None:
    relay = opened()
    relay.add(PLAN, 0, 0, 1)
    relay.add(PLAN, 1, 0, 1)
    assert relay.hear(m.Drop(**named(Place(3, 7, 2)), slot=2)) == []
    assert relay.hear(m.Drop(**named(PLAN.place), slot=3)) == []


def test_a_span_is_said_when_it_is_written() -> None:
    relay = opened()
    assert relay.handle(e.SpanWritten(PLAN.place, 1, b"r" * 32, 2.5)) == [], "nothing of it is averaged yet"
    actions = all_added(relay)
    spans = [action for action in actions if isinstance(action, e.WriteSpan)]
    assert [span.span.span for span in spans] == [0, 1]
    assert said(actions) == [], "nothing of it is on the disk yet"
    (done,) = said(relay.handle(e.SpanWritten(PLAN.place, 1, b"r" * 32, 2.5)))
    assert (done.span, done.root, done.sum_squares, done.included) == (1, b"r" * 32, 2.5, spans[1].included)
    assert relay.handle(e.SpanWritten(PLAN.place, 1, b"r" * 32, 2.5)) == []


def test_with_its_last_span_it_says_what_came_of_whom_and_when() -> None:
    relay = opened()
    planned_at = relay.now
    for later_s, slot in enumerate((0, 2, 1)):
        for chunk in range(4):
            relay.now = planned_at + 1 + later_s + chunk / 4
            relay.add(PLAN, slot, chunk)
            relay.add(PLAN, slot, chunk)  # a repeated chunk is not counted again
    relay.handle(e.SpanWritten(PLAN.place, 0, b"r" * 32, 2.5))
    done, told = said(relay.handle(e.SpanWritten(PLAN.place, 1, b"r" * 32, 2.5)))
    assert (done.span, told.holds) == (1, b"")
    size = 4 * (4 * CHUNK + HEADER.size)
    assert told.arrivals == (
        m.Arrival(SENDERS[0], size, 1.0, 1.75),
        m.Arrival(SENDERS[1], size, 3.0, 3.75),
        m.Arrival(SENDERS[2], size, 2.0, 2.75),
    )


def test_it_says_how_late_the_latest_chunk_of_each_was() -> None:
    plan = plan_of(duration_s=40.0, sigma=0.5)
    relay = opened(plan)
    for slot, chunk in ((0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (2, 1), (2, 2), (2, 3), (1, 0), (1, 2), (1, 3)):
        relay.add(plan, slot, chunk)
    for _ in range(56):
        relay.tick(0.5)
    relay.add(plan, 1, 1)
    relay.handle(e.SpanWritten(plan.place, 0, b"r" * 32, 2.5))
    _, told = said(relay.handle(e.SpanWritten(plan.place, 1, b"r" * 32, 2.5)))
    late = {each.sender: each.late for each in told.arrivals}
    assert late == {SENDERS[0]: 0, SENDERS[1]: pytest.approx(8 / 40), SENDERS[2]: 0}, "planned for 20 s"


def fast_first(plan: Any) -> Stage:
    """Return a relay that has all but one of the first slot's chunks, and the first chunk of each other slot."""
    relay = opened(plan)
    relay.add(plan, 0, 0, 1, 2)
    relay.add(plan, 1, 0)
    relay.add(plan, 2, 0)
    return relay


def ahead(relay: Stage) -> list[int]:
    assert relay.state.reducer is not None
    return [slot for slot in range(-1, 4) if is_ahead(relay.state.reducer, slot, relay.now)]


def test_who_is_ahead_is_read_no_further_while_others_move() -> None:
    plan = plan_of(duration_s=2.9, sigma=0.5)
    relay = fast_first(plan)
    assert ahead(relay) == []
    relay.add(plan, 0, 3)
    assert ahead(relay) == [0], "three more than the others; two batches are one half"
    relay.now += MOVES_S - 0.1
    assert ahead(relay) == [0]
    relay.now += 0.2
    assert ahead(relay) == [], "they stand still"


def test_without_a_plan_in_time_nobody_is_ahead() -> None:
    for plan in (
        plan_of(duration_s=0.4),
        plan_of(duration_s=0.0, sigma=0.5),
        plan_of(duration_s=0.4, sigma=0.5, reducer=OTHER),
    ):
        relay = fast_first(plan)
        relay.add(plan, 0, 3)
        assert ahead(relay) == []
    assert ahead(idle()) == []


def test_without_deadlines_memory_limits_how_far_one_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(duration_s=0.4)
    each = 4 * plan.plan.chunk_elements * len(plan.slots)
    relay = fast_first(plan)
    relay.add(plan, 0, 3)
    for chunks, led in ((3, []), (2, [0]), (0, [0])):  # three more than the others; two batches are two chunks
        monkeypatch.setattr(reducing, "OPEN_BYTES", chunks * each)
        assert ahead(relay) == led
    relay.now += MOVES_S + 0.1
    assert ahead(relay) == [], "the others stand still"


def test_without_deadlines_no_slot_is_held_back_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a sender that drips would hold up all others, because nothing else limits its time."""
    plan = plan_of(duration_s=0.4)
    monkeypatch.setattr(reducing, "OPEN_BYTES", 0)
    relay = fast_first(plan)
    relay.add(plan, 0, 3)
    assert ahead(relay) == [0]
    relay.handle(e.HeldBack(plan.place, 0, HOLD_S))
    assert ahead(relay) == []


def test_sender_is_never_held_back_until_it_is_late() -> None:
    plan = plan_of(duration_s=1.0, sigma=0.1)
    relay = fast_first(plan)
    relay.add(plan, 0, 3)
    relay.now += 1.05
    assert ahead(relay) == [0], "all of it, after all of the plan's time"
    relay.now += 0.1
    assert ahead(relay) == [], "a tenth later"


def test_it_says_for_how_long_it_read_nothing_of_each() -> None:
    relay = opened()
    all_added(relay)
    relay.handle(e.HeldBack(PLAN.place, 1, 0.5))
    relay.handle(e.HeldBack(PLAN.place, 1, 0.25))
    relay.handle(e.SpanWritten(PLAN.place, 0, b"r" * 32, 2.5))
    _, told = said(relay.handle(e.SpanWritten(PLAN.place, 1, b"r" * 32, 2.5)))
    assert [each.held_s for each in told.arrivals] == [0.0, 0.75, 0.0]


def test_span_written_for_a_closed_attempt_is_not_announced() -> None:
    relay = opened()
    all_added(relay)
    again = plan_of(attempt=2)
    relay.hear(again)
    assert relay.add(PLAN, 0, 0) == []
    all_added(relay, again)  # the same span is written once more
    assert relay.handle(e.SpanWritten(PLAN.place, 0, bytes(32), 0.5)) == []
    assert len(said(relay.handle(e.SpanWritten(again.place, 0, bytes(32), 0.5)))) == 1


# Time


def test_reports_that_may_be_lost_repeat_until_the_attempt_ends() -> None:
    """A regression: a lost SpanDone stalled the round until it became void."""
    relay = held()
    relay.handle(e.ChunkRefused(PLAN.place, 0, 0, "E211"))
    for _ in range(3):
        again = said(relay.tick(AGAIN_S))
        assert [type(message) for message in again] == [m.Progress, m.SlotRefused, m.SpanDone, m.SpanDone]
    relay.hear(greeting(step=8))
    assert [type(message) for message in said(relay.tick(AGAIN_S))] == [m.Heartbeat]


def test_who_was_dropped_is_asked_for_nothing_when_it_comes_back() -> None:
    """A dropped contributor answers no requests. A regression: the relay therefore cut the link, which also carries
    its averages.
    """
    relay = opened()
    relay.hear(m.Drop(**named(PLAN.place), slot=2))
    relay.handle(e.Unlinked(SENDERS[2]))
    again = relay.handle(e.Linked(SENDERS[2], Role.TRAINER))
    assert not [action for action in again if isinstance(action, e.Tell) and isinstance(action.message, m.Open)]
    relay.tick(FIRST_FRAME_S)
    cut = [action.peer for action in relay.tick(1.0) if isinstance(action, e.CutLink)]
    assert SENDERS[2] not in cut


def test_progress_is_said_each_second() -> None:
    relay = opened()
    relay.add(PLAN, 1, 0, 3)
    assert said(relay.tick()) == [m.Progress(**named(PLAN.place), received=((0, 0), (1, 2), (2, 0)))]
    assert said(relay.tick(0.9)) == []
    relay.hear(m.Drop(**named(PLAN.place), slot=2))
    (progress,) = said(relay.tick(0.1))
    assert progress.dropped == 1, "the coordinator repeats a drop that is missing here"


def test_link_opened_for_chunks_is_cut_if_it_sends_nothing() -> None:
    relay = opened()
    relay.handle(e.Asked(SENDERS[0], m.Leaves(**named(PLAN.place), slot=0, leaves=LEAVES)))
    relay.handle(e.FrameCame(SENDERS[1], frame(PLAN, 1, 0)))
    assert not [action for action in relay.tick(FIRST_FRAME_S) if isinstance(action, e.CutLink)]
    assert [action for action in relay.tick(0.1) if isinstance(action, e.CutLink)] == [e.CutLink(SENDERS[2])]
    assert not [action for action in relay.tick(30.0) if isinstance(action, e.CutLink)]


def test_it_is_given_as_long_as_the_plan_takes() -> None:
    relay = opened(plan_of(duration_s=60.0))
    assert not [action for action in relay.tick(FIRST_FRAME_S + 59) if isinstance(action, e.CutLink)]


# Deadlines

TIMED = plan_of(duration_s=40.0, sigma=0.1)  # one chunk every ten seconds, and a wait of four


def passes(relay: Stage, seconds: float, tick_s: float = 0.25) -> list[e.Action]:
    """Let time pass in ticks. Return the actions other than messages and cut links."""
    actions: list[e.Action] = []
    for _ in range(round(seconds / tick_s)):
        actions += [action for action in relay.tick(tick_s) if not isinstance(action, e.Say | e.CutLink)]
    return actions


def test_a_chunk_closes_by_the_clock_without_who_is_late() -> None:
    relay = opened(TIMED)
    relay.add(TIMED, 0, 0, 1)
    relay.add(TIMED, 1, 0, 1)
    assert passes(relay, 13.75) == []
    assert passes(relay, 0.25) == [e.CloseChunk(0, 0, 800)]
    assert relay.handle(e.FrameCame(SENDERS[2], frame(TIMED, 2, 0))) == [], "it is over"
    assert relay.add(TIMED, 2, 0) == []
    assert relay.handle(e.FrameCame(SENDERS[2], frame(TIMED, 2, 1))) == [e.AddChunk(2, 1, False)]
    span, (close, write) = TIMED.plan.spans[0], relay.add(TIMED, 2, 1)
    assert close == e.CloseChunk(0, 1, 1000)
    assert write == e.WriteSpan(span, (Included(0, 1, (0, 1)), Included(1, 2, (0, 1, 2))))


def test_who_missed_two_closed_chunks_in_a_row_is_reported_at_once() -> None:
    relay = opened(TIMED)
    relay.add(TIMED, 0, 0, 1, 2)
    relay.add(TIMED, 1, 0, 1, 2)
    told_at = [(tick, said(relay.tick(0.25))) for tick in range(1, 101)]
    words = [(tick / 4, each.behind) for tick, heard in told_at for each in heard if isinstance(each, m.Progress)]
    firsts = [at for at, behind in words if behind]
    assert firsts[:2] == [24.0, 25.0], "when the second chunk closed, and then each second"
    assert {behind for at, behind in words if at >= 24} == {(2,)}
    relay.hear(m.Drop(**named(TIMED.place), slot=2))
    assert said(relay.tick(1.0))[0].behind == (), "the coordinator knows"


@pytest.mark.parametrize(("came", "settled"), [((1,), 3), ((0, 3), 4)], ids=["not neighbours", "in two spans"])
def test_two_missed_chunks_that_are_not_neighbours_in_a_span_do_not_count_as_behind(
    came: tuple[int, ...], settled: int
) -> None:
    relay = opened(TIMED)
    for slot, chunks in ((0, (0, 1, 2)), (1, (0, 1, 2)), (2, came)):
        relay.add(TIMED, slot, *chunks)
    passes(relay, 36.0)
    progress = next(each for each in said(relay.tick(1.0)) if isinstance(each, m.Progress))
    assert (progress.received[2], progress.behind) == ((2, settled), ())


def test_one_that_comes_back_is_not_asked_for_what_is_over() -> None:
    relay = opened(TIMED)
    relay.add(TIMED, 0, 0)
    relay.add(TIMED, 1, 0)
    passes(relay, 14.0)
    ((_, message),) = told(relay.handle(e.Linked(SENDERS[2], Role.TRAINER)))
    assert message.received == (0,)
    assert said(relay.tick(1.0))[0].received == ((0, 1), (1, 1), (2, 1)), "nor waited for"


@pytest.mark.parametrize("asleep_s", [1.0, 60.0])
def test_nobody_is_late_for_the_sleep_of_a_reducer(asleep_s: float) -> None:
    """When a suspended reducer wakes, it still has to read the chunks in its buffers."""
    relay = opened(TIMED)
    relay.add(TIMED, 0, 0)
    relay.add(TIMED, 1, 0)
    assert passes(relay, 13.75) == []
    assert passes(relay, asleep_s, asleep_s) == [], "it has just woken"
    assert relay.add(TIMED, 2, 0) == [e.CloseChunk(0, 0, 1000)]


def test_short_ticks_that_come_late_stop_no_deadline() -> None:
    relay = opened(TIMED)
    relay.add(TIMED, 0, 0)
    relay.add(TIMED, 1, 0)
    assert passes(relay, 14.5, PAUSE_S - 0.25) == [e.CloseChunk(0, 0, 800)]


def test_deadlines_ask_for_the_clock_while_there_are_any() -> None:
    relay = opened(TIMED)
    assert relay.state.reducer is not None
    assert has_deadlines(relay.state.reducer)
    all_added(relay, TIMED)
    for span in range(2):
        relay.handle(e.SpanWritten(TIMED.place, span, bytes(32), 0.5))
    assert not has_deadlines(relay.state.reducer)
    other = opened().state.reducer
    assert other is not None
    assert not has_deadlines(other), "a plan without"
