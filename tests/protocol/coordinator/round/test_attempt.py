"""The state of an attempt: which slots have delivered, and which open chunks can still close."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round.attempt import chunks_of, has_quorum, open_at, open_round
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Included
from tests.protocol.coordinator.scenes import CHUNKS, progress, reducing
from tests.protocol.coordinator.stage import Stage, notes, peer_of

# --- what is open


def have(stage: Stage, **changes: int) -> m.Have:
    return m.Have(**{**stage.place(), **changes}, span=0, root=bytes(32), sum_squares=0.0)


def test_a_word_on_the_attempt_that_is_open_is_heeded() -> None:
    stage, *_ = reducing()
    assert open_round(stage.state, have(stage)) is stage.round
    assert open_round(stage.state, have(stage, attempt=2)) is None


def test_a_word_on_an_attempt_without_a_plan_is_not_heeded() -> None:
    stage, _, (relay,) = reducing()
    stage.handle(e.Lost(relay))
    assert stage.round.attempt == 2
    assert open_round(stage.state, have(stage)) is None


def test_a_word_on_a_round_that_is_being_written_is_not_heeded() -> None:
    stage, *_ = reducing()
    stage.reduce()
    assert stage.state.phase is Phase.COMMIT
    assert open_round(stage.state, have(stage)) is None


def test_what_an_attempt_before_holds_is_nobodys_to_average() -> None:
    stage, _, (dead, living) = reducing({}, {})
    held = [span for span in stage.spans() if span.reducer == living]
    for span in held:
        stage.span_done(span)
    assert set(chunks_of(stage.round)) == {dead, living}
    assert open_at(stage.round) == {dead}
    stage.handle(e.Lost(dead))
    assert chunks_of(stage.round) == {living: CHUNKS - sum(span.stop - span.first for span in held)}
    assert open_at(stage.round) == {living}


# --- what is left


@pytest.mark.parametrize("people", [3, 4])
def test_with_less_than_seven_tenths_left_the_round_is_void(people: int) -> None:
    stage, trainers, _ = reducing(people=people)
    stage.handle(e.Lost(trainers[0].peer))
    assert (stage.state.phase is Phase.REDUCE) == (people == 4)


def test_lost_sender_stays_if_all_its_chunks_had_come() -> None:
    """The tokens of two of the three slots fall short of the quorum. Without the lost sender, the round would be
    void."""
    stage, trainers, relays = reducing({}, {}, people=3)
    for relay in relays:
        progress(stage, relay, CHUNKS, 0, 0)
    stage.handle(e.Lost(trainers[0].peer))
    assert stage.round.dropped == set()
    stage.reduce()
    assert trainers[0].peer in {entry.peer for entry in stage.persist().contributions}


def test_lost_sender_is_dropped_if_one_relay_lacks_its_chunks() -> None:
    stage, trainers, relays = reducing({}, {})
    progress(stage, relays[0], CHUNKS, 0, 0, 0)
    progress(stage, relays[1], 1, 0, 0, 0)
    stage.handle(e.Lost(trainers[0].peer))
    assert stage.round.dropped == {0}


def test_a_chunk_that_cannot_close_any_more_is_not_waited_for() -> None:
    """The lost slot has two fifths of the tokens in the first span, so that span cannot reach its quorum, although
    enough tokens would be left when summed over all the chunks.
    """
    stage, trainers, _ = reducing({}, {})
    first, second = sorted(stage.spans(), key=lambda span: span.first)
    own = stage.round.slots[0].weights[0].tokens
    heavy = (m.Weight(first.first, first.stop, 2 * own), m.Weight(second.first, second.stop, own // 5))
    stage.round.slots = (replace(stage.round.slots[0], weights=heavy), *stage.round.slots[1:])
    stage.handle(e.Lost(trainers[0].peer))
    assert "void" in notes(stage.said)


def test_what_is_averaged_already_needs_no_quorum_any_more() -> None:
    stage, trainers, relays = reducing({}, {}, people=3)
    for span in stage.spans():
        if span.reducer == relays[0]:
            stage.span_done(span)
    progress(stage, relays[1], CHUNKS, 0, 0)
    stage.handle(e.Lost(trainers[0].peer))
    assert stage.state.phase is Phase.REDUCE


def slot(*weights: m.Weight) -> m.Slot:
    return m.Slot(peer=peer_of("ann"), weights=weights, root=bytes(32), norm=1.0, codec="fp32")


def halves(first: int, second: int) -> m.Slot:
    return slot(m.Weight(0, 4, first), m.Weight(4, 8, second))


@pytest.mark.parametrize(("tokens", "is_enough"), [((70, 30), True), ((69, 31), False)])
def test_seven_tenths_of_the_tokens_are_enough(tokens: tuple[int, int], is_enough: bool) -> None:
    slots = [slot(m.Weight(0, 8, weight)) for weight in tokens]
    assert has_quorum(slots, Included(0, 8, (0,))) == is_enough


@pytest.mark.parametrize(("part", "is_enough"), [((0, 4), True), ((4, 8), False), ((0, 8), False), ((2, 5), False)])
def test_enough_is_asked_of_each_chunk(part: tuple[int, int], is_enough: bool) -> None:
    slots = [halves(90, 10), halves(10, 10)]
    assert has_quorum(slots, Included(*part, (0,))) == is_enough


def test_all_that_were_planned_are_always_enough() -> None:
    assert has_quorum([halves(5, 0), halves(7, 0)], Included(0, 8, (0, 1)))
