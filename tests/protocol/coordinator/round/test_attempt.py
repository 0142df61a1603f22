"""What is left of an attempt: who has delivered, and whether what is open can still close."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import CHUNKS, progress, reducing
from tests.protocol.coordinator.stage import notes


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
