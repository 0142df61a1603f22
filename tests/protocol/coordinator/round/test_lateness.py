"""Reducers' reports show which slots are late. Past lateness decides how long the next plan waits."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.bandwidth.flows import Capacity
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.state import Late, Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.timing import AHEAD_OF_PLAN, FAR_AHEAD, ROUNDS_KEPT
from tests.protocol.coordinator.scenes import CHUNKS, progress, reducing
from tests.protocol.coordinator.stage import ELEMENTS, TOKENS, Stage, Trainer, notes, sent

HALF = 2 * ELEMENTS  # bytes of the vector in fp16
EVERYBODY = (0, 1, 2, 3)
OTHERS = (0, 1, 2)


@pytest.fixture(autouse=True)
def chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send chunks one at a time, and leave overheads out of the planned time, to keep the figures round."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


def timed(*relays: dict[str, object], people: int = 4, duration_s: float = 10.0) -> tuple[Stage, list[Trainer], PeerId]:
    """Return a round whose plan takes `duration_s` at the known rates of the relays' links."""
    bps = int(people * HALF / duration_s / max(len(relays), 1))
    stage, trainers, (relay, *_) = reducing(*relays, people=people, bps=[bps] * max(len(relays), 1))
    assert stage.round.plan is not None
    assert stage.round.plan.duration_s == pytest.approx(duration_s, rel=0.01)
    return stage, trainers, relay


def averaged(stage: Stage, *parts: tuple[int, tuple[int, ...]]) -> list[e.Command]:
    """Report the only span as averaged. Each of `parts` is (end of a range of chunks, slots in that range)."""
    (span,) = stage.spans()
    stops = [0, *(stop for stop, _ in parts)]
    included = tuple(Included(first, stop, slots) for first, (stop, slots) in zip(stops, parts, strict=False))
    return stage.span_done(span, included=included)


def texts(commands: list[e.Command], kind: str) -> list[str]:
    return [command.text for command in commands if isinstance(command, e.Note) and command.kind == kind]


# Late slots


def test_missed_chunk_is_left_out_and_the_step_is_not_exact() -> None:
    stage, trainers, _ = timed()
    tokens = trainers[3].samples * TOKENS
    said = averaged(stage, (3, EVERYBODY), (4, OTHERS), (CHUNKS, EVERYBODY))
    assert texts(said, "late") == ["a part of dan's gradient came too late; it counts in the next step"]
    assert "dropped" not in notes(said)
    assert not stage.member(trainers[3]).reliability.probation
    record = stage.persist()
    assert not record.exact
    late = record.contributions[3]
    assert [(part.first, part.stop) for part in late.included] == [(0, 3), (4, CHUNKS)]
    assert late.credit * CHUNKS == record.contributions[2].credit * (CHUNKS - 1)
    assert stage.member(trainers[3]).carried == tokens


def test_who_misses_two_chunks_in_a_row_is_dropped_for_the_round() -> None:
    stage, trainers, relay = two_reducers()
    span = next(span for span in stage.spans() if span.reducer == relay)
    middle = span.first + 2
    everybody = (Included(span.first, middle, EVERYBODY), Included(middle, span.stop, OTHERS))
    said = stage.span_done(span, included=everybody)
    assert stage.round.dropped == {3}
    assert {peer for command in said if isinstance(command, e.Send) for peer in command.peers} >= {relay}
    assert [drop.slot for drop in sent(said, m.Drop, relay)] == [3]  # type: ignore[attr-defined]
    assert texts(said, "dropped") == ["dan was late during a step; the others finish it"]
    assert texts(said, "late") == [], "one word for each machine"
    assert stage.member(trainers[3]).reliability.probation, "it sits out a round"


def test_a_batch_that_comes_late_is_one_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "BATCH_BYTES", 2 * (HALF // CHUNKS + 100))
    stage, *_ = timed()
    said = averaged(stage, (2, EVERYBODY), (4, OTHERS), (CHUNKS, EVERYBODY))
    assert notes(said).count("late") == 1
    assert stage.round.dropped == set()
    stage, *_ = timed()
    averaged(stage, (2, EVERYBODY), (5, OTHERS), (CHUNKS, EVERYBODY))
    assert stage.round.dropped == {3}, "and a part of the next"


def two_reducers() -> tuple[Stage, list[Trainer], PeerId]:
    return timed({}, {})


def test_chunks_in_a_row_are_those_that_the_plan_asks_for() -> None:
    stage, *_ = timed()
    round_ = stage.round
    none_between = replace(round_.slots[3], weights=(m.Weight(0, 3, 90), m.Weight(3, 4, 0), m.Weight(4, CHUNKS, 90)))
    round_.slots = (*round_.slots[:3], none_between)
    said = averaged(stage, (2, EVERYBODY), (5, OTHERS), (CHUNKS, EVERYBODY))
    assert notes(said).count("late") == 1
    assert round_.dropped == set(), "it missed one, and another"


def test_chunks_in_a_row_may_lie_in_neighbouring_parts() -> None:
    stage, *_ = timed(people=7)
    everybody = tuple(range(7))
    said = averaged(stage, (2, everybody), (3, everybody[:5]), (4, everybody[:6]), (CHUNKS, everybody))
    assert stage.round.dropped == {6}
    assert notes(said).count("late") == 1


def test_it_is_told_of_once_for_each_machine() -> None:
    stage, _, _ = two_reducers()
    said: list[e.Command] = []
    for span in stage.spans():
        parts = (Included(span.first, span.first + 1, OTHERS), Included(span.first + 1, span.stop, EVERYBODY))
        said += stage.span_done(span, included=parts)
    assert notes(said).count("late") == 1


def test_who_was_lost_is_not_called_late() -> None:
    stage, trainers, _ = timed()
    stage.handle(e.Lost(trainers[3].peer))
    said = averaged(stage, (CHUNKS, OTHERS))
    assert not {"late", "dropped"} & set(notes(said))


def test_no_more_are_dropped_than_the_others_can_do_without() -> None:
    """Two of five slots are late in different chunks. At most three tenths of the tokens may be missing."""
    stage, trainers, _ = timed(people=5)
    everybody = (0, 1, 2, 3, 4)
    said = averaged(stage, (3, (0, 1, 2, 4)), (6, (0, 1, 2, 3)), (CHUNKS, everybody))
    assert notes(said).count("dropped") == 1
    assert notes(said).count("late") == 1
    assert stage.round.dropped == {3}
    assert [stage.member(trainer).reliability.probation for trainer in trainers] == [False, False, False, True, False]
    assert stage.state.phase is Phase.COMMIT


def test_where_the_plan_has_no_deadlines_nobody_is_late() -> None:
    stage, _, _ = reducing()
    assert stage.round.plan is not None
    assert stage.round.plan.sigma == 0.0
    said = averaged(stage, (3, EVERYBODY), (CHUNKS, OTHERS))
    assert not {"late", "dropped"} & set(notes(said))


def test_often_late_sender_is_quarantined_and_loses_nothing() -> None:
    stage, trainers, _ = timed()
    dan = trainers[3]
    before = dan.accumulator
    for _ in range(3):
        averaged(stage, (2, EVERYBODY), (CHUNKS, OTHERS))
        misses = stage.member(dan).reliability.misses
        assert (misses.until_round, misses.level) == (stage.state.rounds + 1, 0)
        stage.persist()
        stage.commit(*trainers[:3])
        stage.accumulate()
        stage.offers(*trainers)
        stage.close()
        assert dan.peer in {slot.peer for slot in stage.round.slots}
    assert dan.accumulator == before


@pytest.mark.parametrize(("still_s", "is_slow"), [(1.0, True), (3.0, False)])
def test_late_sender_is_slow_until_an_update_has_all_of_it(still_s: float, is_slow: bool) -> None:
    """A suspended machine does not count as slow, because it is as fast as before when it returns."""
    stage, trainers, relay = timed()
    progress(stage, relay, 3, 3, 3, 2)
    stage.wait(still_s)
    averaged(stage, (2, EVERYBODY), (CHUNKS, OTHERS))
    reliability = stage.member(trainers[3]).reliability
    assert reliability.was_late is is_slow
    stage.persist()
    assert reliability.was_late is is_slow, "a part of it is in that update"
    stage.commit(*trainers[:3])
    stage.commit(*trainers)
    assert not reliability.was_late


# How late


def tell(stage: Stage, reducer: PeerId, *lates: float | None) -> None:
    """Report how late each slot was at a reducer. None means that none of its chunks arrived."""
    size = HALF + CHUNKS * 60
    told = [(slot.peer, late) for slot, late in zip(stage.round.slots, lates, strict=True) if late is not None]
    arrivals = tuple(m.Arrival(peer, size, 1.0, 10.0, late=late) for peer, late in sorted(told))
    stage.say(reducer, m.Arrivals(**stage.place(), arrivals=arrivals))


def late(stage: Stage, *trainers: Trainer) -> list[float]:
    by = stage.state.timings.chunks[-1].by if stage.state.timings.chunks else {}
    return [round(by[trainer.peer], 6) for trainer in trainers]


def test_what_a_reducer_says_is_a_senders_lateness() -> None:
    stage, trainers, relay = timed()
    tell(stage, relay, 0.0, 0.0, 0.0, 0.3)
    assert late(stage, *trainers) == pytest.approx([0, 0, 0, 0.3])
    stage, trainers, relay = timed()
    tell(stage, relay, 1.0, 1.0, 1.0, 1.0)
    assert late(stage, *trainers) == [0.5] * 4, "no later than anybody is waited for"


def test_dropped_sender_counts_as_later_than_the_chunk_deadline() -> None:
    stage, trainers, relay = timed()
    assert stage.round.plan is not None
    assert stage.round.plan.sigma == 0.5
    tell(stage, relay, 0.0, 0.0, 0.0, None)
    assert late(stage, *trainers) == [0, 0, 0, 0.5]
    stage, trainers, relay = timed()
    stage.state.timings.chunks.append(Late((0, 0, 0), dict.fromkeys((t.peer for t in trainers), 0.0)))
    stage.round.plan = stage.state.links.attempt.plan = replace(stage.round.plan, sigma=0.05)  # type: ignore[union-attr,type-var]
    tell(stage, relay, 0.0, 0.0, 0.0, None)
    assert late(stage, trainers[3]) == [0.0625], "somewhat later than it was waited for"


def test_one_chunk_that_was_waited_for_in_vain_counts_as_much() -> None:
    stage, trainers, relay = timed()
    stage.state.timings.chunks.append(Late((0, 0, 0), dict.fromkeys((t.peer for t in trainers), 0.0)))
    stage.round.plan = stage.state.links.attempt.plan = replace(stage.round.plan, sigma=0.08)  # type: ignore[union-attr,type-var]
    tell(stage, relay, 0.0, 0.07, 0.08, 0.0)
    assert late(stage, *trainers) == pytest.approx([0, 0.07, 0.1, 0], abs=1e-3)


def test_a_reducer_reports_lateness_once() -> None:
    stage, trainers, relay = timed()
    tell(stage, relay, 0.0, 0.0, 0.0, 0.2)
    tell(stage, relay, 0.0, 0.0, 0.0, 0.4)
    assert late(stage, *trainers) == pytest.approx([0, 0, 0, 0.2])
    assert len(stage.state.timings.chunks) == 1


def test_arrivals_of_non_reducers_or_other_attempts_are_ignored() -> None:
    stage, trainers, relay = timed()
    tell(stage, trainers[0].peer, 0.0, 0.0, 0.0, 0.2)
    stage.say(relay, m.Arrivals(**{**stage.place(), "attempt": 7}, arrivals=()))
    assert not stage.state.timings.chunks


@pytest.mark.parametrize(("pace", "rounds"), [(0.0, 1), (AHEAD_OF_PLAN, 1), (FAR_AHEAD, 0)])
def test_plan_that_may_end_far_earlier_teaches_no_lateness(pace: float, rounds: int) -> None:
    """No slot is late in a round that may run ahead of its plan. If such rounds counted, the next plan would not wait
    for late slots.
    """
    stage, _, relay = timed()
    assert stage.round.plan is not None
    stage.round.plan = stage.state.links.attempt.plan = replace(stage.round.plan, pace=pace)  # type: ignore[union-attr]
    tell(stage, relay, 0.0, 0.0, 0.0, 0.0)
    assert len(stage.state.timings.chunks) == rounds


def test_latest_of_several_reducers_decides_the_lateness() -> None:
    stage, trainers, relay = two_reducers()
    other = next(span.reducer for span in stage.spans() if span.reducer != relay)
    tell(stage, relay, 0.0, 0.0, 0.0, 0.2)
    tell(stage, other, 0.0, 0.0, 0.0, 0.1)
    assert len(stage.state.timings.chunks) == 1
    assert late(stage, trainers[3]) == pytest.approx([0.2], abs=1e-3)


# Sigma


def next_round(stage: Stage, relay: PeerId) -> m.Plan:
    stage.reduce()
    stage.persist()
    stage.accumulate()
    stage.offers(*stage.trainers.values())
    stage.close()
    assert stage.round.plan is not None
    assert relay in {span.reducer for span in stage.round.plan.spans}
    return stage.round.plan


def test_a_plan_waits_as_long_as_chunks_usually_come_late() -> None:
    stage, trainers, relay = timed()
    assert stage.round.plan is not None
    assert stage.round.plan.sigma == 0.5, "nothing is known yet"
    tell(stage, relay, 0.0, 0.0, 0.0, 0.0)
    stage.state.links.capacities = {
        (relay, way): Capacity(400, is_floor=False, measured_at=0) for way in ("up", "down")
    }
    assert next_round(stage, relay).sigma == 0.15
    for number in range(ROUNDS_KEPT):
        by = dict.fromkeys((trainer.peer for trainer in trainers), 0.2)
        stage.state.timings.chunks.append(Late((0, 0, number), by))
    assert len(stage.state.timings.chunks) == ROUNDS_KEPT
    assert next_round(stage, relay).sigma == pytest.approx(0.2)


def test_senders_asked_most_are_awaited_until_their_usual_time() -> None:
    """Of sixteen senders, the four with full links are late in every round and the other twelve never. The four must
    not be dropped.
    """
    stage, trainers, relay = timed()
    for number in range(ROUNDS_KEPT):
        by = {PeerId(f"{index + 0xA0:032x}"): 0.0 for index in range(12)}
        by |= {trainer.peer: 0.22 + 0.01 * index for index, trainer in enumerate(trainers)}
        stage.state.timings.chunks.append(Late((0, 0, number), by))
    stage.state.links.capacities = {
        (relay, way): Capacity(400, is_floor=False, measured_at=0) for way in ("up", "down")
    }
    assert next_round(stage, relay).sigma == pytest.approx(0.24), "the latest is set aside"


def test_a_plan_of_unknown_links_has_no_deadlines() -> None:
    stage, *_ = reducing()
    assert stage.round.plan is not None
    assert (stage.round.plan.duration_s, stage.round.plan.sigma) == (0.0, 0.0)
