"""The coordinator carries out the table in its order. One member's word against another penalises neither."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.acting import row_for
from peer_agent.protocol.coordinator.awaited import Awaited, of_member, of_round
from peer_agent.protocol.coordinator.decisions import Action, Fact, Kind
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.timing import PAUSE_S, SILENT_S
from tests.protocol.coordinator.scenes import CHUNKS, pair, progress, reducing
from tests.protocol.coordinator.stage import ELEMENTS, Stage, Trainer, notes, sent

EVERYBODY, OTHERS = (0, 1, 2, 3), (1, 2, 3)


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send chunks one at a time, and leave overheads out of the planned time, to keep the figures round."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


def members(*persons: str, duration_s: float = 0.0, relays: int = 0) -> tuple[Stage, list[Trainer], list[PeerId]]:
    """Return a round that auxiliaries of these people reduce, together with some relays. `duration_s`: the plan's."""
    said = [{"role": Role.AUXILIARY, "person": person} for person in persons] + [{}] * relays
    bps = [int(4 * 2 * ELEMENTS / duration_s / len(said))] * len(said) if duration_s else [10**8] * len(said)
    stage, trainers, reducers = reducing(*said, bps=bps)
    assert {span.reducer for span in stage.spans()} == set(reducers)
    return stage, trainers, reducers


def refuse(stage: Stage, reducer: PeerId, slot: int = 0) -> list[e.Command]:
    return stage.say(reducer, m.SlotRefused(**stage.place(), slot=slot, chunk=0, code="E211"))


def finish(stage: Stage, trainers: list[Trainer], without: Iterable[int] = ()) -> None:
    """Average everything, let all trainers have the averages, and commit."""
    stage.reduce(without)
    for trainer in trainers:
        if stage.state.phase is Phase.REDUCE:
            stage.gathered(trainer.peer)
    stage.persist()


def is_blamed(stage: Stage, trainer: Trainer) -> bool:
    record = stage.member(trainer).reliability
    return record.probation or stage.state.in_quarantine(record)


# --- refusals


def test_one_members_refusal_drops_the_gradient_and_takes_nothing() -> None:
    stage, trainers, (xan, _) = members("xan", "yve")
    old = trainers[0].accumulator
    said = refuse(stage, xan)
    assert (notes(said), stage.round.dropped) == (["dropped"], {0})
    assert trainers[0].accumulator == old
    assert not is_blamed(stage, trainers[0])
    refuse(stage, xan)
    assert (trainers[0].accumulator, is_blamed(stage, trainers[0])) == (old, False), "the same word twice is one word"


def test_a_second_persons_refusal_is_believed() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    old = trainers[0].accumulator
    refuse(stage, xan)
    refuse(stage, yve)
    assert trainers[0].accumulator != old
    assert stage.member(trainers[0]).reliability.refusals.level == 1


def test_second_word_in_a_later_round_counts_unless_the_gradient_was_used() -> None:
    stage, trainers, (xan, _) = members("xan", "yve")
    refuse(stage, xan)
    assert stage.member(trainers[0]).reliability.disputed_by == {"xan"}
    finish(stage, trainers, [0])
    assert stage.member(trainers[0]).reliability.disputed_by == {"xan"}
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    stage.close()
    finish(stage, trainers)
    assert stage.member(trainers[0]).reliability.disputed_by == set()


def test_two_machines_of_one_person_are_one_word() -> None:
    stage, trainers, (one, two, _) = members("xan", "xan", "yve")
    refuse(stage, one)
    refuse(stage, two)
    assert not is_blamed(stage, trainers[0])


def test_a_relays_refusal_is_believed() -> None:
    stage, trainers, (_, relay) = members("xan", relays=1)
    refuse(stage, relay)
    assert stage.member(trainers[0]).reliability.refusals.level == 1


def test_a_member_that_reduces_alone_is_believed() -> None:
    """No other reducer could notice a damaged gradient."""
    stage, trainers, (xan,) = members("xan")
    refuse(stage, xan)
    assert stage.member(trainers[0]).reliability.refusals.level == 1


def test_if_the_gradient_is_needed_the_accuser_is_replaced() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    refuse(stage, xan, 0)
    said = refuse(stage, xan, 1)
    assert notes(said) == ["replan"]
    assert {span.reducer for span in stage.spans()} == {yve}
    assert not any(is_blamed(stage, trainer) for trainer in trainers)
    assert stage.state.phase is Phase.REDUCE


def test_a_reducers_second_dispute_is_its_failure() -> None:
    stage, _, (xan, _) = members("xan", "yve")
    refuse(stage, xan, 0)
    refuse(stage, xan, 0)
    assert stage.state.members[xan].reliability.reduce.level == 0, "a repeated message is the same dispute"
    refuse(stage, xan, 1)
    assert stage.state.members[xan].reliability.reduce.level == 1
    assert stage.state.members[xan].reliability.disputes_with == set()


def test_who_leaves_the_same_machine_out_again_is_replaced() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    refuse(stage, xan)
    finish(stage, trainers, [0])
    stage.accumulate(*trainers)
    stage.offers(*trainers)
    stage.close()
    slot = next(n for n, entry in enumerate(stage.round.slots) if entry.peer == trainers[0].peer)
    assert notes(refuse(stage, xan, slot)) == ["replan"]
    assert stage.round.dropped == set()
    assert {span.reducer for span in stage.spans()} == {yve}
    assert stage.state.members[xan].reliability.reduce.level == 1
    assert not is_blamed(stage, trainers[0])


def test_a_confirmed_refusal_is_no_dispute() -> None:
    stage, trainers, (xan, relay) = members("xan", relays=1)
    refuse(stage, xan)
    assert stage.state.members[xan].reliability.disputes_with == {"ann"}
    refuse(stage, relay)
    assert stage.member(trainers[0]).reliability.refusals.level == 1
    assert stage.state.members[xan].reliability.disputes_with == set()
    assert stage.state.members[xan].reliability.reduce.level == 0


def test_an_excluded_reducer_keeps_its_failure_when_its_span_is_used() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    span = next(span for span in stage.spans() if span.reducer == xan)
    stage.span_done(span)
    stage.state.members[xan].reliability.reduce.level = 1
    stage.state.members[yve].reliability.reduce.level = 1
    stage.round.excluded = {xan}
    finish(stage, trainers)
    assert stage.state.members[xan].reliability.reduce.level == 1
    assert stage.state.members[yve].reliability.reduce.level == 0


# --- slots that have stopped


def goes_on(stage: Stage, liar: PeerId, honest: PeerId, seconds: float) -> None:
    """Let one reducer report chunks of all slots, and another none of the first slot's."""
    begun, end = stage.now, stage.now + seconds
    while stage.now < end and stage.state.phase is Phase.REDUCE and stage.round.attempt == 1:
        stage.wait(0.5)
        here = min(CHUNKS, int(stage.now - begun))
        progress(stage, honest, here, here, here, here)
        progress(stage, liar, 0, here, here, here)


def test_a_slot_that_only_one_member_misses_is_waited_for() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    goes_on(stage, xan, yve, PAUSE_S + 2)
    assert stage.round.dropped == set()
    assert not is_blamed(stage, trainers[0])
    overdue = [item for item in of_round(stage.state, stage.state.now) if item.kind is Kind.UPLOAD]
    assert [(item.slot, item.at, item.facts) for item in overdue] == [
        (0, xan, frozenset({Fact.STOPPED, Fact.DISPUTED}))
    ]


def test_a_reducer_that_lacks_only_disputed_slots_is_replaced_without_blame() -> None:
    """The sender may have sent it nothing on purpose."""
    stage, _, (xan, yve) = members("xan", "yve")
    begun = stage.now
    while stage.round.attempt == 1 and stage.now < begun + 30:
        stage.wait(0.5)
        here = min(CHUNKS, int(4 * (stage.now - begun)))
        for span in stage.spans():
            if span.reducer == yve and stage.now >= begun + 2 and span.span not in stage.round.done:
                stage.span_done(span)
        progress(stage, yve, here, here, here, here)
        progress(stage, xan, 0, here, here, here)
    assert {span.reducer for span in stage.spans()} == {yve}
    record = stage.state.members[xan].reliability
    assert (record.reduce.level, record.disputes_with) == (0, frozenset({"ann"}))


def test_a_witness_must_have_reported_lately() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    progress(stage, yve, CHUNKS, CHUNKS, CHUNKS, CHUNKS)
    begun = stage.now
    while not stage.round.dropped and stage.now < begun + 12 and stage.round.attempt == 1:
        stage.wait(0.5)
        progress(stage, xan, 0, *[min(CHUNKS, int(stage.now - begun))] * 3)
    assert stage.round.dropped == {0}
    assert is_blamed(stage, trainers[0])


def test_without_a_plan_only_the_round_is_awaited() -> None:
    stage, _, (relay,) = reducing()
    progress(stage, relay, 1, 1, 1, 1)
    stage.handle(e.Lost(relay))
    assert not stage.round.is_planned
    stage.wait(5.0)
    assert {item.kind for item in of_round(stage.state)} == {Kind.ROUND}


def test_a_slot_that_two_people_miss_is_dropped() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve")
    begun = stage.now
    while not stage.round.dropped and stage.now < begun + 10:
        stage.wait(0.5)
        for reducer in (xan, yve):
            progress(stage, reducer, 0, *[min(CHUNKS, int(stage.now - begun))] * 3)
    assert stage.round.dropped == {0}
    assert is_blamed(stage, trainers[0])


def test_two_people_of_three_are_believed() -> None:
    stage, trainers, (xan, yve, zed) = members("xan", "yve", "zed")
    begun = stage.now
    while not stage.round.dropped and stage.now < begun + 10:
        stage.wait(0.5)
        here = min(CHUNKS, int(stage.now - begun))
        for reducer in (xan, yve):
            progress(stage, reducer, 0, here, here, here)
        progress(stage, zed, here, here, here, here)
    assert stage.round.dropped == {0}
    assert is_blamed(stage, trainers[0])


def test_a_slot_that_stops_everywhere_is_dropped_whoever_says_so_first() -> None:
    stage, _, (xan, yve) = members("xan", "yve")
    begun = stage.now
    while not stage.round.dropped and stage.now < begun + 10:
        stage.wait(0.5)
        here = min(CHUNKS, int(stage.now - begun))
        progress(stage, xan, 0, here, here, here)
        progress(stage, yve, 1, 1, 1, 1)
    assert stage.round.dropped == {0}


def test_what_a_relay_misses_is_dropped() -> None:
    stage, trainers, (xan, relay) = members("xan", relays=1)
    goes_on(stage, relay, xan, PAUSE_S + 2)
    assert stage.round.dropped == {0}
    assert is_blamed(stage, trainers[0])


# --- late slots


def late_at(stage: Stage, reducer: PeerId) -> list[e.Command]:
    """Report a reducer's part as averaged, without the first slot in all chunks but one."""
    span = next(span for span in stage.spans() if span.reducer == reducer)
    parts = (Included(span.first, span.first + 1, EVERYBODY), Included(span.first + 1, span.stop, OTHERS))
    return stage.span_done(span, included=parts)


def test_who_is_late_at_one_members_reducer_goes_on() -> None:
    stage, trainers, (xan, yve) = members("xan", "yve", duration_s=10.0)
    said = late_at(stage, xan)
    assert notes(said) == ["late"]
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == (set(), False)
    said = late_at(stage, yve)
    assert stage.round.dropped == {0}, "a second person's word"
    assert is_blamed(stage, trainers[0])


def test_who_is_behind_at_two_persons_reducers_is_dropped_before_a_span_is_averaged() -> None:
    stage, trainers, (xan, yve) = behind_at_one()
    assert notes(progress(stage, xan, 1, 4, 4, 4, behind=(0,))) == [], "the same word again"
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == (set(), False)
    assert notes(progress(stage, yve, 1, 3, 3, 3, behind=(0,))) == ["dropped"]
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == ({0}, True)


def deadlines_pass(stage: Stage, seconds: float = 0.1) -> None:
    """Wait until a reducer may close its first late chunk, and `seconds` longer."""
    assert stage.round.plan is not None
    stage.wait(timing.waiting_s(stage.round.plan) + seconds)


def behind_at_one() -> tuple[Stage, list[Trainer], list[PeerId]]:
    """Return a round in which xan's auxiliary has reported the first slot as behind, and yve's has said nothing."""
    stage, trainers, reducers = members("xan", "yve", duration_s=10.0)
    deadlines_pass(stage)
    assert notes(progress(stage, reducers[0], 1, 3, 3, 3, behind=(0, 99))) == []
    return stage, trainers, reducers


def test_those_behind_are_kept_if_too_few_would_be_left() -> None:
    stage, _, (xan, yve) = members("xan", "yve", duration_s=10.0)
    deadlines_pass(stage)
    for reducer in (xan, yve):
        progress(stage, reducer, 0, 0, 0, 0, behind=EVERYBODY)
    assert stage.state.phase is Phase.REDUCE
    assert stage.round.dropped == {0}, "the other three are a quorum, two are not"


def test_nobody_is_behind_before_a_chunk_could_have_closed() -> None:
    stage, _, (xan, yve) = members("xan", "yve", duration_s=10.0)
    deadlines_pass(stage, -0.1)
    for reducer in (xan, yve):
        progress(stage, reducer, 1, 3, 3, 3, behind=(0,))
    assert stage.round.dropped == set()


def test_a_plan_without_deadlines_has_nobody_behind() -> None:
    stage, _, (xan, yve) = members("xan", "yve", duration_s=1.0)
    stage.wait(10.0)
    for reducer in (xan, yve):
        progress(stage, reducer, 1, 3, 3, 3, behind=(0,))
    assert stage.round.dropped == set()


def test_a_slot_with_no_more_than_a_batch_at_a_reducer_is_not_behind_there() -> None:
    stage, _, (_, yve) = behind_at_one()
    span = next(span for span in stage.spans() if span.reducer == yve)
    first = stage.round.slots[0]
    weights = (m.Weight(0, span.first, 0), m.Weight(span.first, span.first + 1, 9), m.Weight(span.first + 1, CHUNKS, 0))
    stage.round.slots = (replace(first, weights=weights), *stage.round.slots[1:])
    progress(stage, yve, 1, 3, 3, 3, behind=(0,))
    assert stage.round.dropped == set()


def test_a_word_that_the_averages_contradict_does_not_count_and_is_a_dispute() -> None:
    stage, trainers, (xan, yve) = behind_at_one()
    span = next(span for span in stage.spans() if span.reducer == xan)
    stage.span_done(span, included=(Included(span.first, span.stop, EVERYBODY),))
    assert stage.state.members[xan].reliability.disputes_with == {stage.member(trainers[0]).person}
    progress(stage, yve, 1, 3, 3, 3, behind=(0,))
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == (set(), False)


def test_a_word_about_an_earlier_plan_does_not_count() -> None:
    stage, trainers, (xan, _) = behind_at_one()
    stage.handle(e.Lost(xan))
    deadlines_pass(stage)
    assert stage.round.behind_at == {}
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == (set(), False)


def test_words_of_one_persons_machines_are_one_word_though_one_has_left() -> None:
    stage, trainers, (one, other, _) = members("xan", "xan", "yve", duration_s=10.0)
    deadlines_pass(stage)
    progress(stage, one, 1, 1, 1, 1, behind=(0,))
    stage.handle(e.Lost(one))
    deadlines_pass(stage)
    progress(stage, other, 1, 3, 3, 3, behind=(0,))
    assert stage.round.behind_at == {0: {other}}
    assert (stage.round.dropped, is_blamed(stage, trainers[0])) == (set(), False)


def test_who_is_late_at_a_relay_is_dropped() -> None:
    stage, trainers, (_, relay) = members("xan", relays=1, duration_s=10.0)
    late_at(stage, relay)
    assert stage.round.dropped == {0}
    assert is_blamed(stage, trainers[0])


# --- the rest


def test_nothing_is_done_for_an_item_that_the_table_waits_for() -> None:
    stage, _, (xan, _) = members("xan", "yve")
    item = Awaited(Kind.UPLOAD, 0.0, 0.0, stage.round.slots[0].peer, xan, 0, frozenset({Fact.DISPUTED}))
    row = row_for(stage.state, item)
    assert row is not None
    assert row.action is Action.WAIT
    assert row_for(stage.state, Awaited(Kind.COPY, 0.0, 0.0)) is None


def test_a_silent_member_is_evicted_after_half_a_minute() -> None:
    stage, ann, bob = pair()
    silent = stage.member(ann)
    (item,) = [each for each in of_member(stage.state, silent) if each.kind is Kind.SESSION]
    assert item.due_s == silent.heard_at + SILENT_S
    silent.heard_at = stage.state.now - SILENT_S + 2.0  # and Bob's last word is newer
    stage.wait(1.0, alive=False)
    assert ann.peer in stage.state.members
    assert "evicted" in notes(stage.wait(2.5, alive=False))
    assert ann.peer not in stage.state.members
    assert bob.peer in stage.state.members


def test_a_trainer_that_delivers_nothing_is_asked_at_doubling_intervals() -> None:
    stage = Stage(batch=400)
    stage.relay()
    ann = stage.trainer("ann")
    asked: list[float] = []
    while stage.now < 1000.0 + 130:
        said = stage.wait(1.0)
        asked += [stage.now] * len(sent(said, m.Rehello, ann.peer))
    assert [at - 1000.0 for at in asked] == pytest.approx([15, 30, 60, 120], abs=2)
