"""A span counts once it is averaged and stored. Lost or wrong parts are either averaged again or left out."""

import math
from typing import Any

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.round import reducing as reducing_module
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.plan import spans
from peer_agent.protocol.timing import ROUND_TRIP_S
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
        stage.have(reducer, span)
        stage.have(keeper, span, root=b"other" * 6 + b"!!")
    assert stage.round.record is None, "who keeps no log has nothing, and another root is another span"
    for span in stage.spans():
        stage.have(keeper, span)
    assert stage.round.record is not None


def test_what_a_dead_keeper_had_is_averaged_again() -> None:
    stage, _, (reducer, keeper) = reducing({"keeps_log": False}, {"reduces": False})
    first = stage.spans()[0]
    stage.span_done(first)
    stage.have(keeper, first)
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
    stage.gathered(trainers[0].peer, holds=root_of([Leaf(root, 0.5)]))
    stage.span_done(span, root=root, sum_squares=0.5)
    assert stage.round.record is not None


def test_two_relays_that_keep_it_are_two_copies() -> None:
    stage, _, (reducer, keeper) = reducing({}, {"reduces": False})
    stage.gathers = False
    stage.reduce()
    assert {span.reducer for span in stage.spans()} == {reducer}
    for span in stage.spans():
        stage.have(keeper, span)
    assert stage.round.record is not None


def test_a_second_copy_has_no_veto() -> None:
    stage, *_ = done_but_for_a_copy()
    stage.wait(ROUND_TRIP_S - TICK_S)
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
            stage.have(peer, span)
    return stage, trainers, reducers


def test_members_alone_commit_what_most_people_have() -> None:
    """If fewer trainers were enough, a lying auxiliary and an accomplice could commit bytes that no peer has."""
    stage, trainers, _ = done_by_members(AUXILIARY)
    stage.wait(2 * ROUND_TRIP_S)
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
    stage.wait(2 * ROUND_TRIP_S)
    assert stage.round.record is None


def test_undelivered_averages_are_void_and_the_reducer_is_quarantined() -> None:
    stage, trainers, (auxiliary,) = done_by_members()
    stage.gathered(trainers[0].peer)
    stage.wait(60)
    assert "void" in notes(stage.said)
    assert stage.state.step == 0
    assert stage.state.members[auxiliary].reliability.reduce.level == 1


def test_members_span_counts_as_held_once_a_relay_has_it_on_disk() -> None:
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {"reduces": False})
    stage.gathers = False
    stage.reduce()
    assert {span.reducer for span in stage.spans()} == {auxiliary}
    stage.wait(ROUND_TRIP_S)
    for span in stage.spans():
        stage.have(auxiliary, span)
    assert stage.round.record is None, "its own word does not count beside a relay"
    for span in stage.spans():
        stage.have(relay, span)
    assert stage.round.record is not None


def test_a_relay_that_does_not_get_it_in_time_is_not_to_blame() -> None:
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {"reduces": False})
    stage.reduce()
    stage.wait(60)
    assert stage.state.members[auxiliary].reliability.reduce.level == 1
    assert stage.state.members[relay].reliability.reduce.level == 0


def test_nor_is_one_that_reduces_and_keeps_no_log() -> None:
    stage, _, (reducer, _) = reducing({"keeps_log": False}, {"reduces": False})
    stage.reduce()
    stage.wait(60)
    assert "void" in notes(stage.said)
    assert stage.state.members[reducer].reliability.reduce.level == 0


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
    assert notes(stage.span_done(span, **said)) == ["refused", "void"]
    assert (stage.round.done, stage.state.void_rounds) == ({}, 1)


def test_refused_slot_is_dropped_once_and_its_sender_starts_over() -> None:
    stage, trainers, (relay,) = reducing()
    refused = m.SlotRefused(**stage.place(), slot=0, chunk=3, code="E211")
    old = trainers[0].accumulator
    stage.say(relay, refused)
    stage.say(relay, refused)
    assert notes(stage.said).count("dropped") == 1
    assert trainers[0].accumulator != old
    assert stage.member(trainers[0]).reliability.refusals.level == 1
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


# --- reducers that lie


def two_reducers(*, squares: float, **said: Any) -> tuple[Stage, list[e.Command], PeerId, PeerId]:
    """Return what follows if an auxiliary, in a round beside a relay, reports this sum of squares of each span."""
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {}, bps=(10**8, 10**8), **said)
    mine = [span for span in stage.spans() if span.reducer == auxiliary]
    assert 0 < len(mine) < len(stage.spans())
    answer = stage.span_done(mine[0], sum_squares=squares)
    return stage, answer, auxiliary, relay


@pytest.mark.parametrize("squares", [400.0, 1e60], ids=["averages x -20", "no more clipping"])
def test_average_larger_than_its_gradients_is_refused(squares: float) -> None:
    """A regression: a stranger's auxiliary had its averages and its clip factors committed in exact steps."""
    stage, answer, _, relay = two_reducers(squares=squares)
    assert notes(answer)[0] == "refused"
    assert {span.reducer for span in stage.spans()} == {relay}
    stage.reduce()
    record = stage.persist()
    assert math.fsum(span.sum_squares for span in record.spans) <= 1.0
    assert record.scalars.clip > 0.9
    for _ in range(3):
        stage.accumulate()
        stage.offers(*stage.trainers.values())
        assert {span.reducer for span in stage.spans()} == {relay}, "it is not chosen again soon"
        stage.reduce()
        stage.persist()


@pytest.fixture
def one_chunk_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "SPAN_BYTES", 64 * 1024)


@pytest.mark.usefixtures("one_chunk_spans")
def test_all_spans_of_a_liar_are_averaged_again() -> None:
    stage, _, (auxiliary, relay) = reducing(AUXILIARY, {}, bps=(10**8, 10**8))
    *honest, last = [span for span in stage.spans() if span.reducer == auxiliary]
    assert honest
    for span in honest:
        stage.span_done(span)
        stage.have(relay, span)
    stage.span_done(last, sum_squares=400.0)
    assert {span.reducer for span in stage.spans()} == {relay}
    assert not any(span.root for span in stage.spans())


@pytest.mark.usefixtures("one_chunk_spans")
def test_spans_of_a_reducer_together_exceed_no_gradient() -> None:
    stage, _, (auxiliary, _) = reducing(AUXILIARY, {}, bps=(10**8, 10**8))
    first, second, *_ = [span for span in stage.spans() if span.reducer == auxiliary]
    assert not notes(stage.span_done(first, sum_squares=0.8))
    assert notes(stage.span_done(second, sum_squares=0.8))[0] == "refused"


def test_only_reducer_is_refused_too_and_nothing_is_committed() -> None:
    stage, _, (relay,) = reducing()
    (span,) = stage.spans()
    assert notes(stage.span_done(span, sum_squares=400.0)) == ["refused", "void"]
    assert (stage.state.step, stage.state.members[relay].reliability.reduce.level) == (0, 3)


@pytest.mark.parametrize("squares", [0.0, 1e-3, 0.9])
def test_sum_that_a_relay_does_not_find_in_bytes_is_refused(squares: float) -> None:
    """A false sum within the bound would still change how far the update is clipped."""
    stage, answer, auxiliary, relay = two_reducers(squares=squares)
    assert not notes(answer)
    first = next(span for span in stage.spans() if span.reducer == auxiliary)
    answer = stage.have(relay, first, sum_squares=0.1)
    assert notes(answer)[0] == "refused"
    assert {span.reducer for span in stage.spans()} == {relay}


def test_member_that_contradicts_a_sum_convicts_nobody() -> None:
    stage, *_ = two_reducers(squares=0.01)
    (auxiliary,) = {peer for peer, member in stage.state.members.items() if member.role is Role.AUXILIARY}
    other = stage.relay("nas", Role.AUXILIARY)
    first = next(span for span in stage.spans() if span.reducer == auxiliary)
    assert stage.have(other, first, sum_squares=0.1) == []
    assert stage.state.members[auxiliary].reliability.reduce.level == 0


def test_false_sums_get_no_majority_where_there_is_no_relay() -> None:
    stage, trainers, (auxiliary,) = reducing(AUXILIARY)
    stage.gathers = False
    stage.reduce()
    leaves = [Leaf(stage.round.done[span.span].root, 2 * stage.squares(span)) for span in stage.spans()]
    for trainer in trainers:
        stage.gathered(trainer.peer, holds=root_of(leaves))
    assert stage.round.record is None
    stage.wait(60)
    assert stage.state.step == 0
    assert stage.state.members[auxiliary].reliability.reduce.level == 1


def test_who_is_left_out_of_a_chunk_makes_its_average_larger() -> None:
    """Without a slot of small norm, the mean of the others is larger than the mean of all."""
    stage, *_ = reducing(norm=0.01)
    (span,) = stage.spans()
    stage.span_done(span, without=(3,), sum_squares=0.99)
    assert stage.round.record is not None
