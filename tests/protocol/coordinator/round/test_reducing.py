"""A span counts once it is averaged and stored. Lost or wrong parts are either averaged again or left out."""

import math
from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.round import reducing as reducing_module
from peer_agent.protocol.coordinator.round.reducing import SECOND_COPY_S
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import root_over
from peer_agent.protocol.log.records import Included
from tests.protocol.coordinator.scenes import CHUNKS, progress, reducing
from tests.protocol.coordinator.stage import RUN, Stage, Trainer, notes, peer_of

# --- what is held


def test_a_reducer_that_keeps_no_log_needs_a_keeper() -> None:
    stage, _, (reducer, keeper) = reducing({"keeps_log": False}, {"reduces": False})
    assert {span.reducer for span in stage.spans()} == {reducer}
    stage.reduce()
    assert stage.round.record is None
    stage.wait(11)
    assert stage.state.waiting == "waiting for a relay to save the averages"
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
    stage.handle(e.Lost(keeper))
    assert not any(span.root for span in stage.spans())
    assert reducer in stage.state.members


# --- the second copy


def done_but_for_a_copy() -> tuple[Stage, list[Trainer], PeerId]:
    """Return a round whose spans are all on one relay's disk, with no second copy reported."""
    stage, trainers, (relay,) = reducing()
    stage.gathers = False
    stage.reduce()
    assert stage.round.record is None
    return stage, trainers, relay


def test_a_vector_on_one_disk_waits_for_somebody_else_who_has_it() -> None:
    stage, trainers, _ = done_but_for_a_copy()
    stage.gathered(trainers[2].peer)
    assert stage.round.record is not None


def test_holder_of_other_bytes_is_no_second_copy() -> None:
    stage, trainers, relay = done_but_for_a_copy()
    stage.gathered(trainers[2].peer, holds=bytes(32))
    stage.gathered(trainers[1].peer, holds=b"")
    stage.gathered(relay)
    assert stage.round.record is None


def test_who_has_it_before_the_last_span_is_reported_counts() -> None:
    stage, trainers, _ = reducing()
    stage.gathers = False
    (span,) = stage.spans()
    root = bytes([span.span]) * 32
    stage.gathered(trainers[0].peer, holds=root_over([root]))
    stage.span_done(span, root=root)
    assert stage.round.record is not None


def test_two_relays_that_keep_it_are_two_copies() -> None:
    stage, _, (reducer, keeper) = reducing({}, {"reduces": False})
    stage.gathers = False
    stage.reduce()
    assert {span.reducer for span in stage.spans()} == {reducer}
    for span in stage.spans():
        stage.say(keeper, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
    assert stage.round.record is not None


def test_a_second_copy_has_no_veto() -> None:
    stage, *_ = done_but_for_a_copy()
    stage.wait(SECOND_COPY_S - TICK_S)
    assert stage.round.record is None
    stage.wait(2 * TICK_S)
    assert stage.round.record is not None


def test_copy_is_not_awaited_when_no_member_is_left_to_hold_one() -> None:
    stage, trainers, (relay,) = reducing()
    stage.gathers = False
    progress(stage, relay, *[CHUNKS] * len(trainers))
    for trainer in trainers:
        stage.handle(e.Lost(trainer.peer))
    stage.reduce()
    assert stage.round.record is not None


# --- without a relay (decision 12)

AUXILIARY = {"role": Role.AUXILIARY}


def done_by_members(*others: dict[str, Any], people: int = 4) -> tuple[Stage, list[Trainer], list[PeerId]]:
    """Return a round in which auxiliaries have averaged every span and reported it as stored."""
    stage, trainers, reducers = reducing(AUXILIARY, *others, people=people)
    stage.gathers = False
    stage.reduce()
    for span in stage.spans():
        for peer in reducers:
            stage.say(peer, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
    return stage, trainers, reducers


def test_members_alone_commit_what_most_people_have() -> None:
    """If fewer trainers were enough, a lying auxiliary and an accomplice could commit bytes that no peer has."""
    stage, trainers, _ = done_by_members(AUXILIARY)
    stage.wait(2 * SECOND_COPY_S)
    stage.gathered(trainers[0].peer)
    stage.gathered(trainers[1].peer)
    assert stage.round.record is None, "half of them is not most"
    stage.gathered(trainers[2].peer, holds=bytes(32))
    assert stage.round.record is None
    stage.gathered(trainers[2].peer)
    assert stage.round.record is not None


def test_machines_of_one_person_are_one_voice() -> None:
    stage = Stage(batch=40)
    stage.relay("nas", Role.AUXILIARY)
    trainers = [
        stage.trainer(name, person) for name, person in zip("abcde", ("ann", "ann", "ann", "bob", "cem"), strict=True)
    ]
    for trainer in trainers:
        stage.say(trainer.peer, m.Reaches(run=RUN, listeners=(peer_of("nas"),)))
    stage.accumulate()
    stage.offers(*trainers)
    stage.gathers = False
    stage.reduce()
    for trainer in trainers[:3]:
        stage.gathered(trainer.peer)
    assert stage.round.record is None
    stage.gathered(trainers[3].peer)
    assert stage.round.record is not None


def test_of_a_crowd_not_every_word_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducing_module, "LOOKS", 1)
    stage, trainers, _ = done_by_members(people=5)
    looks: list[int] = []
    look = reducing_module._commit_when_held

    def counted(state: RunState, round_: Round) -> list[e.Command]:
        looks.append(len(round_.gathered))
        return look(state, round_)

    monkeypatch.setattr(reducing_module, "_commit_when_held", counted)
    for trainer in trainers[:3]:
        stage.gathered(trainer.peer)
    assert looks == [1]
    stage.wait(2 * TICK_S)
    assert stage.round.record is not None, "the clock looks"


def test_of_those_who_are_gone_no_word_is_waited_for() -> None:
    stage, trainers, (auxiliary,) = done_by_members()
    progress(stage, auxiliary, *[CHUNKS] * len(trainers))
    stage.gathered(trainers[0].peer)
    stage.gathered(trainers[1].peer)
    assert stage.round.record is None
    stage.handle(e.Lost(trainers[3].peer))
    stage.wait(1)
    assert stage.round.record is not None


def test_where_nobody_is_left_nothing_is_committed() -> None:
    stage, trainers, (auxiliary,) = done_by_members()
    progress(stage, auxiliary, *[CHUNKS] * len(trainers))
    for trainer in trainers:
        stage.handle(e.Lost(trainer.peer))
    stage.wait(2 * SECOND_COPY_S)
    assert stage.round.record is None


def test_undelivered_averages_are_void_and_the_reducer_sits_out() -> None:
    stage, trainers, (auxiliary,) = done_by_members()
    stage.gathered(trainers[0].peer)
    stage.wait(60)
    assert "void" in notes(stage.said)
    assert stage.state.step == 0
    assert stage.state.members[auxiliary].conduct.strikes == 1


def test_members_span_counts_as_held_once_a_relay_has_it_on_disk() -> None:
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {"reduces": False})
    stage.gathers = False
    stage.reduce()
    assert {span.reducer for span in stage.spans()} == {auxiliary}
    stage.wait(SECOND_COPY_S)
    for span in stage.spans():
        stage.say(auxiliary, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
    assert stage.round.record is None, "its own word does not count beside a relay"
    for span in stage.spans():
        stage.say(relay, m.Have(**stage.place(), span=span.span, root=stage.round.done[span.span].root))
    assert stage.round.record is not None


def test_a_relay_that_does_not_get_it_in_time_is_not_to_blame() -> None:
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {"reduces": False})
    stage.reduce()
    stage.wait(60)
    assert stage.state.members[auxiliary].conduct.strikes == 1
    assert stage.state.members[relay].conduct.strikes == 0


def test_nor_is_one_that_reduces_and_keeps_no_log() -> None:
    stage, _, (reducer, _) = reducing({"keeps_log": False}, {"reduces": False})
    stage.reduce()
    stage.wait(60)
    assert "void" in notes(stage.said)
    assert stage.state.members[reducer].conduct.strikes == 0


# --- twice, wrong, lost


def test_a_span_that_is_said_to_be_done_twice_counts_once() -> None:
    stage, _, _ = reducing()
    span = stage.spans()[0]
    stage.span_done(span)
    before = dict(stage.round.done)
    assert stage.span_done(span, root=bytes([9]) * 32) == []
    assert stage.round.done == before


ALL = (0, 1, 2, 3)


@pytest.mark.parametrize(
    "said",
    [
        {"included": (Included(0, 7, ALL),)},
        {"included": (Included(0, 9, ALL),)},
        {"included": (Included(0, 3, ALL), Included(4, 8, ALL))},
        {"included": (Included(0, 0, ALL), Included(0, 8, ALL))},
        {"included": (Included(0, 8, ()),)},
        {"included": (Included(0, 8, (0, 1)),)},
        {"included": (Included(0, 8, (0, 1, 2, 3, 3)),)},
        {"included": (Included(0, 8, (0, 1, 2, 3, 4)),)},
        {"sum_squares": math.inf},
        {"sum_squares": -1.0},
    ],
    ids=["short", "long", "gap", "empty part", "nobody", "too few", "twice", "unknown", "infinite", "negative"],
)
def test_a_span_that_does_not_fit_the_plan_is_refused(said: dict[str, Any]) -> None:
    stage, *_ = reducing()
    (span,) = stage.spans()
    assert notes(stage.span_done(span, **said)) == ["refused"]
    assert stage.round.done == {}


def test_refused_slot_is_dropped_once_and_its_sender_starts_over() -> None:
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


def test_a_new_attempt_does_without_those_who_are_gone() -> None:
    stage, trainers, relays = reducing({}, {})
    for relay in relays:
        progress(stage, relay, CHUNKS, 0, 0, 0)
    stage.handle(e.Lost(trainers[0].peer))
    stage.handle(e.Lost(relays[0]))
    assert (stage.round.attempt, stage.round.dropped) == (2, {0})
