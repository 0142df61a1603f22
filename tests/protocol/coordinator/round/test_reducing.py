"""A reduce goes on while anything moves, in the pace of its reducer, and no byte is held by the dead."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.planning import REDUCE_S
from peer_agent.protocol.coordinator.round.watching import HANG_S, STALL_S
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.stage import ELEMENTS, Stage, Trainer, notes, peer_of, sent

CHUNKS = ELEMENTS // (16 * 1024)


def reducing(*relays: Mapping[str, object], people: int = 4) -> tuple[Stage, list[Trainer], list[PeerId]]:
    """A round whose plan was just announced."""
    stage = Stage(batch=8 * people)
    reducers = [stage.relay(f"relay{number}", **said) for number, said in enumerate(relays or ({},))]
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan", "eva")[:people]]
    stage.accumulate()
    stage.offers(*trainers)
    assert stage.state.phase is Phase.REDUCE
    return stage, trainers, reducers


def progress(stage: Stage, reducer: PeerId, *chunks: int) -> list[e.Command]:
    return stage.say(reducer, m.Progress(**stage.place(), received=tuple(enumerate(chunks))))


def run(stage: Stage, reducer: PeerId, seconds: float, *per_s: float) -> float:
    """Chunks arrive at so many a second, the reducer says how far it is twice a second. When the last one came."""
    begun = stage.now
    while stage.now < begun + seconds and stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
        if stage.state.phase is Phase.REDUCE:
            progress(stage, reducer, *(min(CHUNKS, int(rate * (stage.now - begun))) for rate in per_s))
    return stage.now - begun


# --- stalls


def test_a_slot_that_stops_is_dropped_when_the_others_go_on() -> None:
    stage, _, (relay,) = reducing()
    run(stage, relay, 12, 2, 2, 2, 0.25)
    assert stage.round.dropped == set(), "slow is not stuck"
    stage, trainers, (relay,) = reducing()
    run(stage, relay, STALL_S + 2, 2, 2, 2, 0)
    assert stage.round.dropped == {3}
    assert sent(stage.said, m.Drop, relay)
    assert stage.member(trainers[3]).conduct.owes, "it sits out a round"


@pytest.mark.parametrize(("unit_s", "at_least", "at_most"), [(0.25, 1, 3), (4, 4, 5)])
def test_where_batches_take_a_moment_a_stall_is_one_too(unit_s: float, at_least: float, at_most: float) -> None:
    """Four seconds of eleven steps are more than anybody who stands still is worth."""
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
    run(stage, relay, 5 * CHUNKS + 1, 0.2, 0.19)
    assert stage.round.plan is not None
    assert stage.round.dropped == set()
    assert "void" not in notes(stage.said)
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT


def test_the_measure_is_the_faster_half_at_that_reducer() -> None:
    """Three need ten seconds a chunk: the fourth has forty. Where all but one are fast, it has four."""
    stage, _, (relay,) = reducing()
    run(stage, relay, 38, 0.1, 0.1, 0.1, 0)
    assert stage.round.dropped == set()
    run(stage, relay, 6, 0.1, 0.1, 0.1, 0)
    assert stage.round.dropped == {3}


def test_a_frozen_relay_accuses_nobody() -> None:
    """Nothing is heard of it, or it says that nobody moves: with nobody to compare, only the deadline decides."""
    stage, trainers, (relay,) = reducing()
    run(stage, relay, 2, 2, 2, 1, 1)
    while stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
    assert "dropped" not in notes(stage.said)
    stage, trainers, (relay,) = reducing()
    run(stage, relay, REDUCE_S - 1, 0, 0, 0, 0)
    assert "dropped" not in notes(stage.said)
    assert not any(stage.member(trainer).conduct.owes for trainer in trainers)


def test_who_is_ahead_may_wait_for_the_others_and_is_not_accused() -> None:
    """A reducer's window is full of what is ahead; the one that holds it up is the one behind."""
    stage, _, (relay,) = reducing()
    for _ in range(16):
        stage.wait(0.5)
        progress(stage, relay, 6, 6, 6, 4)
    assert stage.round.dropped == {3}


def test_two_slots_that_stop_at_the_same_chunk_are_left_to_the_deadline() -> None:
    stage, _, (relay,) = reducing(people=2)
    for _ in range(16):
        stage.wait(0.5)
        progress(stage, relay, 3, 3)
    assert stage.round.dropped == set()


def of_long_batches(people: int, unit_s: float) -> tuple[Stage, list[Trainer], PeerId]:
    """A round of equal trainers who have made two units each."""
    stage = Stage(batch=8 * people)
    relay = stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "bob", "cem", "dan")[:people]]
    stage.accumulate(unit_s=unit_s)
    stage.offers(*trainers)
    return stage, trainers, relay


def test_who_is_needed_is_waited_for_as_long_as_the_others_take_to_make_its_part() -> None:
    """Without a third of the tokens the round would be void: two can make them in twenty seconds."""
    stage, trainers, relay = of_long_batches(3, 20)
    assert 21 <= run(stage, relay, 60, 4, 4, 0.26) <= 25
    assert "void" in notes(stage.said)
    slow = stage.member(trainers[2]).conduct
    assert slow.owes
    assert stage.state.sits_out(slow)


def test_whom_the_others_cannot_do_without_is_waited_for() -> None:
    """One of four would need four times as long for the next batch."""
    stage, _, relay = of_long_batches(4, 2)
    run(stage, relay, 26, 4, 0.3, 0.3, 0.3)
    assert stage.round.dropped == set()
    assert "void" not in notes(stage.said)


def test_all_that_are_too_slow_sit_out_the_same_round() -> None:
    """Two of five, in one void round and not in two."""
    stage, trainers, (relay,) = reducing(people=5)
    run(stage, relay, 12, 4, 4, 4, 0.3, 0.3)
    assert stage.state.void_rounds == 1
    assert [stage.member(trainer).conduct.misses for trainer in trainers] == [0, 0, 0, 1, 1]


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


def test_a_round_in_which_nothing_moves_is_void_and_the_next_one_is_given_twice_the_time() -> None:
    stage, trainers, _ = reducing()
    begun = stage.now
    while stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
    assert REDUCE_S <= stage.now - begun < REDUCE_S + 1
    stage.accumulate()
    stage.offers(*trainers)
    stage.close()
    assert stage.round.deadline - stage.state.now == 2 * REDUCE_S


def test_a_reducer_at_which_nothing_moved_is_planned_no_part_however_much_it_talks() -> None:
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
    assert stage.state.members[stuck].conduct.strikes == 1


def done_and_still(stage: Stage, relays: list[PeerId], seconds: float, *, moving: bool = False) -> None:
    """The first relay is done and says so; at the other one nothing moves, or a chunk every two seconds."""
    begun = stage.now
    while stage.now < begun + seconds:
        for span in stage.spans():
            if span.reducer == relays[0] and not span.root:
                stage.span_done(span)
        progress(stage, relays[1], *[int((stage.now - begun) / 2) if moving else 0] * 4)
        stage.wait(0.5)


def test_a_relay_that_stands_still_beside_one_that_is_done_is_done_without() -> None:
    """Its disk is full, or it hangs while it speaks: the round need not be void for that."""
    stage, trainers, relays = reducing({}, {})
    done_and_still(stage, relays, STALL_S)
    assert stage.round.attempt == 1
    done_and_still(stage, relays, 1)
    assert stage.round.attempt == 2
    assert {(span.reducer, bool(span.root)) for span in stage.spans()} == {(relays[0], True), (relays[0], False)}
    assert stage.state.members[relays[1]].conduct.strikes == 1
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert "void" not in notes(stage.said)
    assert len(stage.persist().contributions) == len(trainers)


def test_a_relay_that_comes_while_the_only_one_stands_still_takes_its_part() -> None:
    stage, _, relays = reducing({})
    run(stage, relays[0], HANG_S - 1, 0, 0, 0, 0)
    new = stage.relay("new")
    assert stage.round.attempt == 1
    run(stage, relays[0], 1.5, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {new}


def test_a_relay_that_sits_out_is_better_than_one_that_stands_still() -> None:
    stage, trainers, relays = reducing({}, {})
    done_and_still(stage, relays, HANG_S + 1)
    stage.reduce()
    stage.persist()
    stage.accumulate()
    stage.offers(*trainers)
    stage.close()
    assert {span.reducer for span in stage.spans()} == {relays[0]}, "the other one sits out"
    run(stage, relays[0], HANG_S + 1, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {relays[1]}
    run(stage, relays[1], HANG_S + 1, 0, 0, 0, 0)
    assert {span.reducer for span in stage.spans()} == {relays[1]}, "both stood still: the deadline decides"


def test_a_slow_relay_or_the_last_one_is_waited_for() -> None:
    stage, _, relays = reducing({}, {})
    done_and_still(stage, relays, HANG_S + 2, moving=True)
    assert stage.round.attempt == 1
    stage, _, relays = reducing({}, {})
    run(stage, relays[0], HANG_S + 2, 0, 0, 0, 0)
    assert stage.round.attempt == 1, "where none is done, the way to them may be what is slow"


def test_where_rounds_were_void_a_relay_is_given_more_time_too() -> None:
    """Where none is done, nothing says how long is long."""
    stage, _, relays = reducing({})
    stage.state.slow_rounds = 1
    stage.round.deadline += 100
    stage.relay("new")
    run(stage, relays[0], 2 * HANG_S - 1, 0, 0, 0, 0)
    assert stage.round.attempt == 1
    run(stage, relays[0], 1.5, 0, 0, 0, 0)
    assert stage.round.attempt == 2


# --- what is held


def test_spans_of_a_dead_relay_do_not_count_as_held() -> None:
    stage, _, relays = reducing({}, {})
    dead, living = relays
    for span in stage.spans():
        if span.reducer == dead:
            stage.span_done(span)
    stage.take(e.Lost(dead))
    assert stage.round.attempt == 2
    assert {span.reducer for span in stage.spans()} == {living}
    assert not any(span.root for span in stage.spans())
    assert sum(span.stop - span.first for span in stage.spans()) == CHUNKS
    stage.reduce()
    assert {span.reducer for span in stage.round.record.spans} == {living}  # type: ignore[union-attr]


def test_spans_of_the_living_are_kept_when_another_reducer_dies() -> None:
    stage, _, (dead, living) = reducing({}, {})
    held = [span for span in stage.spans() if span.reducer == living]
    for span in held:
        stage.span_done(span)
    stage.take(e.Lost(dead))
    kept = {(span.first, span.stop, span.attempt) for span in stage.spans() if span.root}
    assert kept == {(span.first, span.stop, 1) for span in held}


def test_a_reducer_that_keeps_no_log_needs_a_keeper() -> None:
    stage, _, (reducer, keeper) = reducing({"keeps_log": False}, {"reduces": False})
    assert {span.reducer for span in stage.spans()} == {reducer}
    stage.reduce()
    assert stage.round.record is None
    stage.wait(11)
    assert stage.state.waiting == "waiting for a relay to keep what is averaged"
    for span in stage.spans():
        stage.say(reducer, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
        stage.say(keeper, m.Have(**stage.place(), span=span.span, root=b"other" * 6 + b"!!"))
    assert stage.round.record is None, "who keeps no log has nothing, and another root is another span"
    for span in stage.spans():
        stage.say(keeper, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
    assert stage.round.record is not None


def test_what_a_dead_keeper_had_is_averaged_again() -> None:
    stage, _, (reducer, keeper) = reducing({"keeps_log": False}, {"reduces": False})
    first = stage.spans()[0]
    stage.span_done(first)
    stage.say(keeper, m.Have(**stage.place(), span=first.span, root=stage.round.done[first.span].root))
    stage.take(e.Lost(keeper))
    assert not any(span.root for span in stage.spans())
    assert reducer in stage.state.members


def test_somebody_who_cannot_be_dialled_or_does_not_reduce_is_planned_no_part() -> None:
    stage, _, relays = reducing({}, {"url": ""}, {"reduces": False})
    assert {span.reducer for span in stage.spans()} == {relays[0]}


def test_a_trainers_word_that_it_reduces_is_not_taken() -> None:
    stage, trainers, (relay,) = reducing()
    hello = m.Hello(
        run=stage.state.run, accumulator=trainers[0].accumulator, url="ws://me", reduces=True, keeps_log=True
    )
    stage.say(trainers[0].peer, hello)
    assert [member.peer for member in stage.state.reducers()] == [relay]
    assert not stage.member(trainers[0]).keeps_log


# --- twice, late, lost


def test_a_span_that_is_said_to_be_done_twice_counts_once() -> None:
    stage, _, _ = reducing()
    span = stage.spans()[0]
    stage.span_done(span)
    before = dict(stage.round.done)
    assert stage.span_done(span, root=bytes([9]) * 32) == []
    assert stage.round.done == before


def test_progress_that_comes_late_harms_nobody() -> None:
    stage, _, (relay,) = reducing()
    late = m.Progress(**stage.place(), received=((0, 0), (1, 0)))
    stage.reduce()
    assert stage.say(relay, late) == []
    stage.persist()
    assert stage.say(relay, late) == []


def test_a_lost_plan_is_announced_again_to_the_reducer_that_says_nothing() -> None:
    stage, _, (relay,) = reducing()
    again = [c for c in stage.wait(STALL_S) if isinstance(c, e.Announce)]
    assert again
    assert all(
        command.keepers == (relay,) and not command.peers and command.plan == stage.round.plan for command in again
    )


def test_a_lost_plan_is_announced_again_to_the_contributor_of_whom_nothing_comes() -> None:
    stage, trainers, (relay,) = reducing()
    announced: list[e.Announce] = []
    for chunks in range(1, 8):
        announced += [c for c in stage.wait(0.5) if isinstance(c, e.Announce)]
        progress(stage, relay, chunks, chunks, chunks, 0)
    assert {(command.keepers, command.peers) for command in announced} == {((), (trainers[3].peer,))}
    assert sent(stage.said, m.Listeners, trainers[3].peer)


def test_a_lost_drop_is_said_again() -> None:
    stage, trainers, (relay,) = reducing()
    stage.take(e.Lost(trainers[0].peer))
    before = len(sent(stage.said, m.Drop, relay))
    run(stage, relay, 9, 0, 1, 1, 1)
    assert len(sent(stage.said, m.Drop, relay)) > before


def test_a_refused_slot_is_dropped_once_and_its_sender_begins_anew() -> None:
    stage, trainers, (relay,) = reducing()
    refused = m.SlotRefused(**stage.place(), slot=0, chunk=3, code="E211")
    old = trainers[0].accumulator
    stage.say(relay, refused)
    stage.say(relay, refused)
    assert notes(stage.said).count("dropped") == 1
    assert trainers[0].accumulator != old
    assert stage.member(trainers[0]).conduct.strikes == 1
    stage.reduce([0])
    record = stage.persist()
    assert trainers[0].peer not in {entry.peer for entry in record.contributions}


@pytest.mark.parametrize("people", [3, 4])
def test_with_less_than_seven_tenths_left_the_round_is_void(people: int) -> None:
    stage, trainers, _ = reducing(people=people)
    stage.take(e.Lost(trainers[0].peer))
    assert (stage.state.phase is Phase.REDUCE) == (people == 4)


def test_whoever_is_lost_after_all_its_chunks_came_stays_in_the_round() -> None:
    """Three of four hold less than it: without it the round would be void."""
    stage, trainers, relays = reducing({}, {}, people=3)
    for relay in relays:
        progress(stage, relay, CHUNKS, 0, 0)
    stage.take(e.Lost(trainers[0].peer))
    assert stage.round.dropped == set()
    stage.reduce()
    assert trainers[0].peer in {entry.peer for entry in stage.persist().contributions}


def test_whoever_is_lost_before_one_relay_had_all_of_it_is_dropped() -> None:
    stage, trainers, relays = reducing({}, {})
    progress(stage, relays[0], CHUNKS, 0, 0, 0)
    progress(stage, relays[1], 1, 0, 0, 0)
    stage.take(e.Lost(trainers[0].peer))
    assert stage.round.dropped == {0}


def test_a_new_attempt_does_without_those_who_are_gone() -> None:
    stage, trainers, relays = reducing({}, {})
    for relay in relays:
        progress(stage, relay, CHUNKS, 0, 0, 0)
    stage.take(e.Lost(trainers[0].peer))
    stage.take(e.Lost(relays[0]))
    assert (stage.round.attempt, stage.round.dropped) == (2, {0})


def test_a_chunk_that_cannot_close_any_more_is_not_waited_for() -> None:
    """One holds two fifths of what the first chunks weigh, and little of the others: of all, enough would be left."""
    stage, trainers, _ = reducing({}, {})
    first, second = sorted(stage.spans(), key=lambda span: span.first)
    own = stage.round.slots[0].weights[0].tokens
    heavy = (m.Weight(first.first, first.stop, 2 * own), m.Weight(second.first, second.stop, own // 5))
    stage.round.slots = (replace(stage.round.slots[0], weights=heavy), *stage.round.slots[1:])
    stage.take(e.Lost(trainers[0].peer))
    assert "void" in notes(stage.said)


def test_what_is_averaged_already_needs_no_quorum_any_more() -> None:
    stage, trainers, relays = reducing({}, {}, people=3)
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    progress(stage, relays[1], CHUNKS, 0, 0)
    stage.take(e.Lost(trainers[0].peer))
    assert stage.state.phase is Phase.REDUCE


def test_everybody_is_told_who_can_be_dialled() -> None:
    stage = Stage()
    ann = stage.trainer("ann")
    stage.relay()
    listeners = sent(stage.said, m.Listeners, ann.peer)[-1]
    assert listeners.listeners == (  # type: ignore[attr-defined]
        m.Listener(peer_of("relay"), "ws://relay", "", reduces=True, keeps_log=True),
    )
    stage.take(e.Lost(peer_of("relay")))
    assert sent(stage.said, m.Listeners, ann.peer)[-1].listeners == ()  # type: ignore[attr-defined]
