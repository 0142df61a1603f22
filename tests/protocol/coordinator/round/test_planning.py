"""Planning: every chunk goes to a present reducer, and a dead reducer's bytes do not count as stored."""

from collections import Counter

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS, Capacity, Way
from peer_agent.protocol.bandwidth.pairs import HOPE
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.decisions import Kind
from peer_agent.protocol.coordinator.reach import look_at_reach
from peer_agent.protocol.coordinator.reliability import Quarantine
from peer_agent.protocol.coordinator.round.planning import (
    FRAMING,
    START_S,
    _missing,
    limited_parts,
    make_plan,
    patience_s,
)
from peer_agent.protocol.coordinator.state import Late
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.timing import AHEAD_OF_PLAN, EXPIRY_S, FAR_AHEAD, MOST_SIGMA
from tests.protocol.coordinator.scenes import CHUNKS, capacities_of, chunks_arrive, reducing
from tests.protocol.coordinator.stage import ELEMENTS, RUN, Stage, peer_of, sent

# --- what is held


def test_spans_of_a_dead_relay_do_not_count_as_held() -> None:
    stage, _, relays = reducing({}, {})
    dead, living = relays
    for span in stage.spans():
        if span.reducer == dead:
            stage.span_done(span)
    stage.handle(e.Lost(dead))
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
    stage.handle(e.Lost(dead))
    kept = {(span.first, span.stop, span.attempt) for span in stage.spans() if span.root}
    assert kept == {(span.first, span.stop, 1) for span in held}


def test_numbers_of_spans_are_not_used_again() -> None:
    stage, _, (dead, living) = reducing({}, {})
    before = {span.span for span in stage.spans()}
    for span in stage.spans():
        if span.reducer == living:
            stage.span_done(span)
    stage.handle(e.Lost(dead))
    numbers = [span.span for span in stage.spans()]
    assert len(numbers) == len(set(numbers))
    assert {span.span for span in stage.spans() if not span.root}.isdisjoint(before)


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        ([], [(0, 8)]),
        ([(0, 8)], []),
        ([(2, 4)], [(0, 2), (4, 8)]),
        ([(5, 8), (0, 2)], [(2, 5)]),
        ([(0, 2), (2, 5)], [(5, 8)]),
    ],
)
def test_what_nobody_holds_is_dealt(held: list[tuple[int, int]], missing: list[tuple[int, int]]) -> None:
    spans = [m.PlannedSpan(span=0, first=a, stop=b, reducer=peer_of("relay"), attempt=1) for a, b in held]
    assert _missing(spans, 8) == missing


# --- reducers


def test_reducer_with_triple_bandwidth_gets_a_triple_part() -> None:
    stage, _, relays = reducing({}, {}, bps=(3_000_000, 1_000_000))
    parts = {relay: sum(s.stop - s.first for s in stage.spans() if s.reducer == relay) for relay in relays}
    assert parts == {relays[0]: 6, relays[1]: 2}


@pytest.mark.parametrize(
    ("own", "most", "parts"),
    [
        ({"": 0.1, "eve": 0.9}, 1 / 3, {"": 2 / 3, "eve": 1 / 3}),
        ({"": 0.0, "eve": 1.0}, 1 / 3, {"": 2 / 3, "eve": 1 / 3}),
        ({"": 0.7, "eve": 0.3}, 1 / 3, {"": 0.7, "eve": 0.3}),
        (
            {"ann": 0.1, "bob": 0.1, "cem": 0.2, "eve": 0.6},
            1 / 3,
            {"ann": 1 / 6, "bob": 1 / 6, "cem": 1 / 3, "eve": 1 / 3},
        ),
        ({"ann": 0.0, "bob": 0.0, "eve": 1.0}, 1 / 3, {"ann": 1 / 3, "bob": 1 / 3, "eve": 1 / 3}),
        ({"ann": 0.1, "eve": 0.9}, 1 / 2, {"ann": 1 / 2, "eve": 1 / 2}),
        ({"eve": 1.0}, 1.0, {"eve": 1.0}),
    ],
)
def test_nobody_has_more_than_the_limit_while_others_can_average(
    own: dict[str, float], most: float, parts: dict[str, float]
) -> None:
    assert limited_parts(own, most) == pytest.approx(parts)


@pytest.mark.parametrize(
    ("trusted", "most"),
    [(None, 8), (frozenset({"eve"}), 8), (frozenset[str](), 3)],
    ids=["closed", "member", "stranger"],
)
def test_strangers_auxiliary_averages_at_most_a_third(trusted: frozenset[str] | None, most: int) -> None:
    """Accomplices said that it had a hundred times the relay's bandwidth."""
    stage, _, (relay,) = reducing(bps=(1_000_000,))
    eve = stage.relay("eve", Role.AUXILIARY, "eve")
    stage.state.links.capacities |= capacities_of([(eve, 100_000_000)])
    stage.state.reached.add(eve)
    stage.state.trusted = trusted
    parts = Counter({relay: 0})
    for span in dealt(stage).spans:
        parts[span.reducer] += span.stop - span.first
    assert parts[eve] in {most, most - 1}


@pytest.mark.parametrize("is_out", [False, True])
def test_trainer_that_stalled_or_failed_a_round_has_no_part(is_out: bool) -> None:
    """Such a trainer reduces nothing, but still sends and receives."""
    stage, trainers, (relay,) = reducing(bps=(1_000_000,))
    stage.state.links.capacities |= capacities_of((trainer.peer, 1_000_000) for trainer in trainers)
    listening = stage.member(trainers[0])
    stage.hello(trainers[0], url="ws://me", reduces=True, keeps_log=True)
    for peer in (relay, *(trainer.peer for trainer in trainers)):
        stage.say(peer, m.Reaches(run=RUN, listeners=(trainers[0].peer, relay)))
    look_at_reach(stage.state)
    assert {span.reducer for span in dealt(stage).spans} == {relay, trainers[0].peer}
    if is_out:
        listening.reliability.misses = Quarantine(until_round=stage.state.rounds)
        listening.reliability.failed_at = stage.state.now
    else:
        stage.round.excluded = {trainers[0].peer}
    assert {span.reducer for span in dealt(stage).spans} == {relay}


def dealt(stage: Stage) -> m.Plan:
    return make_plan(stage.state, stage.round, stage.state.reducers())


@pytest.mark.parametrize(("is_tried", "parts"), [(True, (4, 4)), (False, (6, 2))])
def test_plan_hopes_for_more_from_links_that_may_carry_more(is_tried: bool, parts: tuple[int, int]) -> None:
    """Links that seem slow would otherwise carry little and never show what they can do."""
    stage, _, relays = reducing({}, {}, bps=(1_000_000, 1_000_000))
    for way in WAYS:
        known = stage.state.links.capacities[relays[0], way]
        known.is_floor, known.is_tried = True, is_tried
    new = make_plan(stage.state, stage.round, stage.state.reducers())
    assert tuple(sum(s.stop - s.first for s in new.spans if s.reducer == relay) for relay in relays) == parts
    longest = max(parts) / 8 * 4 * encoded_size("fp16", stage.state.elements) / 1e6
    assert new.duration_s == pytest.approx(START_S + FRAMING * longest, rel=0.1), "its time rests on what was seen"


def test_deadline_is_patience_plus_four_times_what_links_take() -> None:
    stage, *_ = reducing({}, bps=(1000,))
    assert stage.round.plan is not None
    took = stage.round.plan.duration_s
    assert took > 100
    assert stage.round.deadline - stage.round.planned_at == pytest.approx(EXPIRY_S + 4 * took)


@pytest.mark.parametrize(
    ("is_floor", "is_tried", "pace", "sigma"),
    [(False, False, AHEAD_OF_PLAN, 0.15), (True, True, AHEAD_OF_PLAN, 0.15), (True, False, FAR_AHEAD, MOST_SIGMA)],
)
def test_a_plan_is_kept_to_where_it_is_known_what_limits_it(
    is_floor: bool, is_tried: bool, pace: float, sigma: float
) -> None:
    """If the limiting link is unknown, gradients may run far ahead of the plan, and the next plan then knows more."""
    stage, trainers, (relay,) = reducing({}, bps=(1000,))
    stage.state.timings.chunks.append(Late((1, 0, 1), {trainer.peer: 0.0 for trainer in trainers}))
    for way in WAYS:
        known = stage.state.links.capacities[relay, way]
        known.is_floor, known.is_tried = is_floor, is_tried
    new = make_plan(stage.state, stage.round, stage.state.reducers())
    assert (new.pace, new.sigma) == (pace, sigma)


@pytest.mark.parametrize(("tried", "pace"), [("up", AHEAD_OF_PLAN), ("down", AHEAD_OF_PLAN), (None, FAR_AHEAD)])
def test_direction_that_limits_no_plan_need_not_be_known(tried: Way | None, pace: float) -> None:
    """A relay sends averages as fast as it receives gradients. Once one direction of its link is full, the other
    direction carries no more."""
    stage, trainers, (relay,) = reducing({}, bps=(1000,))
    stage.state.timings.chunks.append(Late((1, 0, 1), {trainer.peer: 0.0 for trainer in trainers}))
    for way in WAYS:
        stage.state.links.capacities[relay, way] = Capacity(
            1000 if way == tried else 990, True, 0, is_tried=way == tried
        )
    new = make_plan(stage.state, stage.round, stage.state.reducers())
    assert new.pace == pace


@pytest.mark.parametrize(("is_floor", "hoped"), [(False, 1.0), (True, 1 / HOPE)])
def test_of_a_pair_that_carried_its_limit_in_time_more_is_hoped(is_floor: bool, hoped: float) -> None:
    """Shares follow the hoped-for rate. The planned duration follows the measured rate."""
    stage, trainers, (relay,) = reducing(bps=(10_000_000,))
    pair = trainers[0].peer, relay
    stage.state.links.pairs[pair] = Capacity(100_000, is_floor=is_floor, measured_at=0, is_tried=True)
    new = make_plan(stage.state, stage.round, stage.state.reducers())
    assert stage.round.hoped == pytest.approx(hoped)
    took_s = encoded_size("fp16", stage.state.elements) / 100_000
    assert new.duration_s == pytest.approx(START_S + FRAMING * took_s, rel=0.01)


def test_a_hope_that_makes_the_round_longer_is_put_to_the_test() -> None:
    """The plan hopes that one relay carries twice its known rate. Senders that kept close to the plan would never put
    this to the test.
    """
    stage, trainers, relays = reducing({}, {}, bps=(1000, 1000))
    stage.state.timings.chunks.append(Late((1, 0, 1), {trainer.peer: 0.0 for trainer in trainers}))
    for direction, known in stage.state.links.capacities.items():
        known.is_floor = known.is_tried = direction[0] != relays[1]
    other = {way: stage.state.links.capacities[relays[1], way] for way in WAYS}
    for way in WAYS:
        other[way].is_floor, other[way].bps = True, 1000 / 3
    assert make_plan(stage.state, stage.round, stage.state.reducers()).pace == FAR_AHEAD
    for way in WAYS:
        other[way].is_tried = True
    assert make_plan(stage.state, stage.round, stage.state.reducers()).pace == AHEAD_OF_PLAN


@pytest.mark.parametrize(("way", "factor", "pace"), [("up", 5, AHEAD_OF_PLAN), ("up", 7, 0.0), ("down", 7, 0.0)])
def test_plan_does_not_keep_step_with_a_far_slower_link(way: Way, factor: int, pace: float) -> None:
    """If senders kept step, one slow machine would make every peer's round as long as its own."""
    stage, trainers, _ = reducing({}, bps=(10_000_000,))
    stage.state.links.capacities |= capacities_of([(trainer.peer, 70_000) for trainer in trainers])
    stage.state.links.capacities[trainers[3].peer, way].bps /= factor
    assert make_plan(stage.state, stage.round, stage.state.reducers()).pace == pace


def test_a_plan_without_a_time_has_no_pace() -> None:
    stage, *_ = reducing()
    assert stage.round.plan is not None
    assert (stage.round.plan.duration_s, stage.round.plan.pace) == (0.0, 0.0)


def test_plan_time_covers_its_bytes_framing_and_start() -> None:
    stage, trainers, _ = reducing({}, bps=(1000,))
    assert stage.round.plan is not None
    bytes_s = len(trainers) * 2 * ELEMENTS / 1000
    assert stage.round.plan.duration_s == pytest.approx(START_S + FRAMING * bytes_s, rel=1e-4)


@pytest.mark.parametrize(("void", "times"), [(0, 1), (1, 2), (3, 8), (5, 32), (9, 32)])
def test_patience_doubles_with_each_round_in_which_nothing_moved(void: int, times: int) -> None:
    state = Stage().state
    state.timings.failures[Kind.ROUND] = void
    assert patience_s(state) == times * EXPIRY_S


def test_without_a_reducer_the_round_waits_for_one() -> None:
    stage, _, (relay,) = reducing()
    stage.handle(e.Lost(relay))
    assert not stage.round.is_planned
    new = stage.relay("new")
    assert stage.round.is_planned
    assert {span.reducer for span in stage.spans()} == {new}


# --- recipients


def test_relays_are_told_the_whole_plan_and_trainers_their_part() -> None:
    stage, trainers, relays = reducing({}, {"reduces": False})
    (told,) = [command for command in stage.said if isinstance(command, e.Announce)]
    assert told.keepers == tuple(relays)
    assert told.peers == tuple(trainer.peer for trainer in trainers)
    assert told.plan is stage.round.plan


def test_who_is_dropped_is_told_so_as_it_need_not_send_any_more() -> None:
    stage, trainers, (relay,) = reducing()
    chunks_arrive(stage, relay, 6, 2, 2, 2, 0)
    assert stage.round.dropped == {3}
    assert sent(stage.said, m.Drop, trainers[3].peer)
    assert not sent(stage.said, m.Drop, trainers[0].peer)


def test_reducers_hear_of_every_drop_and_again_with_each_plan() -> None:
    stage, trainers, (dead, living, _) = reducing({}, {}, {"reduces": False})
    dropped = stage.handle(e.Lost(trainers[0].peer))
    again = stage.handle(e.Lost(dead))
    for commands, attempt, reducers in ((dropped, 1, (dead, living)), (again, 2, (living,))):
        (drop,) = [c for c in commands if isinstance(c, e.Send) and isinstance(c.message, m.Drop)]
        assert drop == e.Send(reducers, m.Drop(**{**stage.place(), "attempt": attempt}, slot=0))
    assert sent(again, m.Drop, living)
