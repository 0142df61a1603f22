"""A reduce phase continues while chunks keep arriving, judged by the speed of their reducer. Stalled peers are
replaced or dropped.
"""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.coordinator.awaited import HEARD_S, _standing_s, still_s
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.timing import EXPIRY_S, MISSED_REPORTS, PAUSE_S
from tests.protocol.coordinator.scenes import CHUNKS, chunks_arrive, progress, reducing
from tests.protocol.coordinator.stage import ELEMENTS, Stage, notes, sent

HANG_S = MISSED_REPORTS * PAUSE_S  # without progress before a free reducer takes over


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send chunks one at a time, and leave overheads out of the planned time, to keep the figures round."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


# --- stalls


def test_a_slot_that_stops_is_dropped_when_the_others_go_on() -> None:
    stage, _, (relay,) = reducing()
    chunks_arrive(stage, relay, 12, 2, 2, 2, 0.25)
    assert stage.round.dropped == set(), "slow is not stuck"
    stage, trainers, (relay,) = reducing()
    chunks_arrive(stage, relay, PAUSE_S + 2, 2, 2, 2, 0)
    assert stage.round.dropped == {3}
    assert sent(stage.said, m.Drop, relay)
    assert stage.member(trainers[3]).reliability.probation, "it sits out a round"


@pytest.mark.parametrize(("unit_s", "at_least", "at_most"), [(0.25, 1, 3), (4, 4, 5)])
def test_where_batches_take_a_moment_a_stall_is_one_too(unit_s: float, at_least: float, at_most: float) -> None:
    stage, trainers, (relay,) = reducing()
    stage.reduce()
    stage.persist()
    for _ in range(3):
        stage.commit(unit_s=unit_s)
    stage.accumulate(unit_s=unit_s)
    stage.offers(*trainers)
    begun = stage.now
    while not stage.round.dropped and stage.now < begun + 10:
        stage.wait(0.5)
        progress(stage, relay, *[min(CHUNKS, int(6 * (stage.now - begun)))] * 3, 0)
    assert at_least <= stage.now - begun <= at_most
    assert stage.round.dropped == {3}


def test_a_reduce_of_a_fifth_of_a_chunk_a_second_commits() -> None:
    stage, _, (relay,) = reducing(people=2)
    chunks_arrive(stage, relay, 5 * CHUNKS + 1, 0.2, 0.19)
    assert stage.round.plan is not None
    assert stage.round.dropped == set()
    assert "void" not in notes(stage.said)
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT


def test_the_measure_is_the_faster_half_at_that_reducer() -> None:
    """If three slots take ten seconds per chunk, the fourth may take forty before it is dropped."""
    stage, _, (relay,) = reducing()
    chunks_arrive(stage, relay, 38, 0.1, 0.1, 0.1, 0)
    assert stage.round.dropped == set()
    chunks_arrive(stage, relay, 6, 0.1, 0.1, 0.1, 0)
    assert stage.round.dropped == {3}


def test_a_frozen_relay_accuses_nobody() -> None:
    """If the relay is silent or reports no progress for any slot, slots cannot be compared, and only the deadline
    decides.
    """
    stage, trainers, (relay,) = reducing()
    chunks_arrive(stage, relay, 2, 2, 2, 1, 1)
    while stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
    assert "dropped" not in notes(stage.said)
    stage, trainers, (relay,) = reducing()
    chunks_arrive(stage, relay, EXPIRY_S - 1, 0, 0, 0, 0)
    assert "dropped" not in notes(stage.said)
    assert not any(stage.member(trainer).reliability.probation for trainer in trainers)


def test_who_is_ahead_may_wait_for_the_others_and_is_not_accused() -> None:
    """A reducer's buffer fills with chunks from fast slots, which wait for the slow slot. The fast senders are not at
    fault.
    """
    stage, _, (relay,) = reducing()
    for _ in range(16):
        stage.wait(0.5)
        progress(stage, relay, 6, 6, 6, 4)
    assert stage.round.dropped == {3}


def test_slots_stopped_at_one_chunk_are_left_to_the_deadline() -> None:
    stage, _, (relay,) = reducing(people=2)
    for _ in range(16):
        stage.wait(0.5)
        progress(stage, relay, 3, 3)
    assert stage.round.dropped == set()


def test_needed_sender_is_awaited_as_long_as_redoing_it_takes() -> None:
    """Without a third of the tokens, the round would be void. Two trainers can recompute these tokens in twenty
    seconds.
    """
    stage, trainers, (relay,) = reducing(people=3, unit_s=20)
    assert 21 <= chunks_arrive(stage, relay, 60, 4, 4, 0.26) <= 25
    assert "void" in notes(stage.said)
    slow = stage.member(trainers[2]).reliability
    assert slow.probation
    assert stage.state.in_quarantine(slow)


def test_whom_the_others_cannot_do_without_is_waited_for() -> None:
    """If three of the four trainers were dropped, the remaining one would take four times as long to compute a
    batch."""
    stage, _, (relay,) = reducing(people=4, unit_s=2)
    chunks_arrive(stage, relay, 26, 4, 0.3, 0.3, 0.3)
    assert stage.round.dropped == set()
    assert "void" not in notes(stage.said)


def test_all_that_are_too_slow_sit_out_the_same_round() -> None:
    stage, trainers, (relay,) = reducing(people=5)
    chunks_arrive(stage, relay, 12, 4, 4, 4, 0.3, 0.3)
    assert stage.state.void_rounds == 1
    assert [stage.member(trainer).reliability.misses.level for trainer in trainers] == [0, 0, 0, 1, 1]


# --- deadlines


def test_a_deadline_moves_with_progress_alone() -> None:
    stage, _, (relay,) = reducing()
    deadline = stage.round.deadline
    stage.wait(2)
    progress(stage, relay, 0, 0, 0, 0)
    assert stage.round.deadline == deadline
    progress(stage, relay, 2, 0, 0, 0)
    moved = stage.round.deadline
    assert moved > deadline
    stage.wait(1)
    for chunks in (2, 1, 0, 2):
        progress(stage, relay, chunks, 0, 0, 0)
    assert stage.round.deadline == moved, "the same, or less, is no progress"
    progress(stage, relay, CHUNKS, 0, 0, 0)
    last = stage.round.deadline
    stage.wait(1)
    progress(stage, relay, 10**6, 0, 0, 0)
    assert stage.round.deadline == last, "more than there is is no progress"


def test_stalled_round_is_void_and_the_next_gets_twice_the_time() -> None:
    stage, trainers, _ = reducing()
    begun = stage.now
    while stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
    assert EXPIRY_S <= stage.now - begun < EXPIRY_S + 1
    stage.accumulate()
    stage.offers(*trainers)
    stage.close()
    assert stage.round.deadline - stage.state.now == 2 * EXPIRY_S


def test_reducer_where_nothing_moved_loses_its_part() -> None:
    stage, _, relays = reducing({}, {})
    first = {span.reducer for span in stage.spans()}
    assert first == set(relays)
    stuck, works = relays
    for span in stage.spans():
        if span.reducer == works:
            stage.span_done(span)
    while stage.round.attempt == 1:
        stage.wait(0.5)
    assert "replan" in notes(stage.said)
    assert "void" not in notes(stage.said)
    assert {span.reducer for span in stage.spans()} == {works}
    assert any(span.root for span in stage.spans()), "what is held is kept"
    assert stage.state.members[stuck].reliability.reduce.level == 1


def done_and_still(stage: Stage, relays: list[PeerId], seconds: float, *, moving: bool = False) -> None:
    """Report that the first relay is done, while the second reports no progress, or a chunk every two seconds if
    `moving`.
    """
    begun = stage.now
    while stage.now < begun + seconds:
        for span in stage.spans():
            if span.reducer == relays[0] and not span.root:
                stage.span_done(span)
        progress(stage, relays[1], *[int((stage.now - begun) / 2) if moving else 0] * 4)
        stage.wait(0.5)


def test_stalled_relay_beside_a_finished_one_is_replaced() -> None:
    """The relay's disk may be full, or the relay may hang but still report. The round need not become void."""
    stage, trainers, relays = reducing({}, {})
    done_and_still(stage, relays, PAUSE_S)
    assert stage.round.attempt == 1
    done_and_still(stage, relays, 1)
    assert stage.round.attempt == 2
    assert {(span.reducer, bool(span.root)) for span in stage.spans()} == {(relays[0], True), (relays[0], False)}
    assert stage.state.members[relays[1]].reliability.reduce.level == 1
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert "void" not in notes(stage.said)
    assert len(stage.persist().contributions) == len(trainers)


def test_relay_with_all_chunks_is_not_awaited_as_one_receiving() -> None:
    """Once a relay has all the chunks, link speed no longer matters. Its disk may be full."""
    stage, _, relays = reducing({}, {})
    begun, way_s = stage.now, 2 * PAUSE_S
    while stage.round.attempt == 1:
        chunks = min(CHUNKS, int((stage.now - begun) / way_s * CHUNKS))
        progress(stage, relays[1], *[chunks] * 4)
        for span in stage.spans():
            if span.reducer == relays[0] and not span.root and chunks == CHUNKS:
                stage.span_done(span)
        stage.wait(0.5)
    assert 2 * way_s <= stage.now - begun <= 2 * way_s + 1
    assert {span.reducer for span in stage.spans()} == {relays[0]}


def test_new_relay_takes_over_from_the_only_one_that_stalled() -> None:
    stage, _, relays = reducing({})
    chunks_arrive(stage, relays[0], HANG_S - 1, 0, 0, 0, 0)
    new = stage.relay("new")
    assert stage.round.attempt == 1
    chunks_arrive(stage, relays[0], 1.5, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {new}


def test_quarantined_relay_is_preferred_to_a_stalled_one() -> None:
    stage, trainers, relays = reducing({}, {})
    done_and_still(stage, relays, HANG_S + 1)
    stage.reduce()
    stage.persist()
    stage.accumulate()
    stage.offers(*trainers)
    stage.close()
    assert {span.reducer for span in stage.spans()} == {relays[0]}, "the other one sits out"
    chunks_arrive(stage, relays[0], HANG_S + 1, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {relays[1]}
    chunks_arrive(stage, relays[1], HANG_S + 1, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {relays[1]}, "both stood still: the deadline decides"


def test_a_slow_relay_or_the_last_one_is_waited_for() -> None:
    stage, _, relays = reducing({}, {})
    done_and_still(stage, relays, HANG_S + 2, moving=True)
    assert stage.round.attempt == 1
    stage, _, relays = reducing({}, {})
    chunks_arrive(stage, relays[0], HANG_S + 2, 0, 0, 0, 0)
    assert stage.round.attempt == 1, "where none is done, the way to them may be what is slow"


def test_where_rounds_were_void_a_relay_is_given_more_time_too() -> None:
    """While no relay is done, nothing shows how long a relay should take."""
    stage, _, relays = reducing({})
    stage.state.timings.failures[Kind.ROUND] = 1
    stage.round.deadline += 100
    stage.relay("new")
    chunks_arrive(stage, relays[0], 2 * HANG_S - 1, 0, 0, 0, 0)
    assert stage.round.attempt == 1
    chunks_arrive(stage, relays[0], 1.5, 0, 0, 0, 0)
    assert stage.round.attempt == 2


# --- late, lost


def test_progress_that_comes_late_harms_nobody() -> None:
    stage, _, (relay,) = reducing()
    late = m.Progress(**stage.place(), received=((0, 0), (1, 0)))
    stage.reduce()
    assert stage.say(relay, late) == []
    stage.persist()
    assert stage.say(relay, late) == []


# --- with a known plan time


def timed(*relays: Mapping[str, object], duration_s: float, people: int = 4) -> tuple[Stage, list[PeerId]]:
    """Return a round whose plan takes `duration_s` at the relays' link rates. The first relay's deadlines are half as
    long.
    """
    bps = int(people * 2 * ELEMENTS / duration_s / len(relays))
    stage, _, reducers = reducing(*relays, people=people, bps=[bps] * len(relays))
    assert stage.round.plan is not None
    assert stage.round.plan.duration_s == pytest.approx(duration_s, rel=0.01)
    return stage, reducers


def test_slot_stopped_shorter_than_the_wait_is_left_to_deadlines() -> None:
    stage, (relay,) = timed({}, duration_s=40.0)
    chunks_arrive(stage, relay, 19, 0.5, 0.5, 0.5, 0)
    assert stage.round.dropped == set(), "half of forty seconds"
    chunks_arrive(stage, relay, 3, 0.5, 0.5, 0.5, 0)
    assert stage.round.dropped == {3}


def goes_on(stage: Stage, relays: list[PeerId], seconds: float, *, begun: float, still: int) -> None:
    """Let the first relay report another chunk of each slot every second, and the second always `still` chunks. The
    second is silent if `still` is negative.
    """
    end = stage.now + seconds
    while stage.now < end and stage.round.attempt == 1:
        stage.wait(0.5)
        progress(stage, relays[0], *[min(4, int(stage.now - begun))] * 4)
        if still >= 0:
            progress(stage, relays[1], *[still] * 4)


@pytest.mark.parametrize("still", [-1, 0, 1])
def test_stalled_reducer_is_replaced_while_its_senders_go_on(still: int) -> None:
    stage, relays = timed({}, {}, duration_s=4.0)
    begun = stage.now
    goes_on(stage, relays, HEARD_S - 0.5, begun=begun, still=still)
    assert stage.round.attempt == 1
    goes_on(stage, relays, 2.0, begun=begun, still=still)
    assert stage.round.attempt == 2
    assert {span.reducer for span in stage.spans()} == {relays[0]}
    assert stage.state.members[relays[1]].reliability.reduce.level == 1
    assert "void" not in notes(stage.said)


@pytest.mark.parametrize("is_mute", [True, False])
def test_silent_reducer_is_replaced_as_soon_as_another_is_done(is_mute: bool) -> None:
    """A regression: a reducer that stopped while uploading delayed the round until three seconds after all the others
    were done.
    """
    stage, relays = timed({}, {}, duration_s=4.0)
    begun = stage.now
    while stage.now < begun + HEARD_S + 0.5:
        stage.wait(0.5)
        progress(stage, relays[0], *[min(4, int(stage.now - begun))] * 4)
        if not is_mute or stage.now <= begun + 0.5:
            progress(stage, relays[1], 1, 1, 1, 1)
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    stage.wait(0.5)
    assert stage.round.attempt == (2 if is_mute else 1)
    assert ({span.reducer for span in stage.spans()} == {relays[0]}) is is_mute


@pytest.mark.parametrize(("duration_s", "mute_s"), [(4.0, HEARD_S), (40.0, 20.0)])
def test_how_long_it_may_be_mute_is_a_part_of_the_plans_time(duration_s: float, mute_s: float) -> None:
    """A shorter silence may mean only that three reports were lost, or that the reducer is busy."""
    stage, relays = timed({}, {}, duration_s=duration_s)
    progress(stage, relays[1], 1, 1, 1, 1)
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    heard_at = stage.now
    while stage.now < heard_at + mute_s - 0.5:
        stage.wait(0.25)
        progress(stage, relays[0], 4, 4, 4, 4)
        assert stage.round.attempt == 1
    stage.wait(1.0)
    assert stage.round.attempt == 2


def test_how_long_it_may_stand_still_is_a_part_of_the_plans_time() -> None:
    stage, relays = timed({}, {}, duration_s=40.0)
    begun = stage.now
    while stage.now < begun + 19:
        stage.wait(0.5)
        progress(stage, relays[0], *[int((stage.now - begun) / 6)] * 4)
    assert stage.round.attempt == 1
    while stage.now < begun + 25 and stage.round.attempt == 1:
        stage.wait(0.5)
        progress(stage, relays[0], *[min(4, int((stage.now - begun) / 6))] * 4)
    assert stage.round.attempt == 2


@pytest.mark.parametrize(
    ("duration_s", "sigma", "standing_s"),
    [(40.0, 0.05, 20.0), (40.0, 0.8, 32.0), (4.0, 0.05, HEARD_S), (40.0, 0.0, 0.0)],
)
def test_it_is_at_least_two_of_its_four_chunks_and_three_reports(
    duration_s: float, sigma: float, standing_s: float
) -> None:
    stage, relays = timed({}, {}, duration_s=40.0)
    assert stage.round.plan is not None
    stage.round.plan = replace(stage.round.plan, duration_s=duration_s, sigma=sigma)
    assert _standing_s(stage.round, {relays[0]}) == pytest.approx(standing_s)


def test_where_the_senders_stand_still_too_no_reducer_is_blamed() -> None:
    stage, relays = timed({}, {}, duration_s=4.0)
    for _ in range(16):
        stage.wait(0.5)
        progress(stage, relays[0], 2, 2, 2, 2)
        progress(stage, relays[1], 1, 1, 1, 1)
    assert stage.round.attempt == 1


def test_stalled_reducer_gets_under_four_times_the_others_time() -> None:
    stage, relays = timed({}, {}, duration_s=4.0)
    stage.wait(2.0)
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    done_and_still(stage, relays, HEARD_S - 0.5)
    assert stage.round.attempt == 1
    done_and_still(stage, relays, 1.0)
    assert stage.round.attempt == 2


def test_nobody_is_late_for_the_sleep_of_the_host() -> None:
    stage, relays = timed({}, {}, duration_s=4.0)
    stage.wait(0.5)
    progress(stage, relays[0], 1, 1, 1, 1)
    progress(stage, relays[1], 1, 1, 1, 1)
    stage.now += 60
    progress(stage, relays[0], 2, 2, 2, 2)
    stage.tick()
    assert stage.round.attempt == 1
    assert stage.round.dropped == set()


@pytest.mark.parametrize(("batch", "seconds"), [(1, 10.0), (3, 30.0), (8, 40.0)])
def test_planned_silence_lasts_as_long_as_two_batches_take(
    batch: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, _, (relay,) = reducing({}, bps=(ELEMENTS * 8 // 40,))
    assert stage.round.plan is not None
    monkeypatch.setattr(timing, "BATCH_BYTES", batch * (2 * ELEMENTS // CHUNKS + 100))
    assert still_s(stage.round, relay) == pytest.approx(seconds, rel=0.01)
    stage.round.plan = replace(stage.round.plan, sigma=0.0)
    assert still_s(stage.round, relay) == 0.0


def test_slot_with_no_batch_due_yet_is_not_taken_for_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reducer with few chunks receives a slow sender's chunks late, but all at once."""
    stage, _, (relay,) = reducing({}, bps=(ELEMENTS * 8 // 40,))
    assert stage.round.plan is not None
    stage.round.plan = replace(stage.round.plan, sigma=0.05)
    monkeypatch.setattr(timing, "BATCH_BYTES", 8 * (2 * ELEMENTS // CHUNKS + 100))
    chunks_arrive(stage, relay, 35, 0.2, 0.2, 0.2, 0)
    assert stage.round.dropped == set(), "the plan has forty seconds"
    chunks_arrive(stage, relay, 15, 0.2, 0.2, 0.2, 0)
    assert stage.round.dropped == {3}
