"""Learning link rates from receivers' reports. A false report has little effect."""

from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS, Flow
from peer_agent.protocol.bandwidth.links import MOST_KNOWN, _as_asked, planned_sizes
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan.outline import parts_of
from tests.protocol.coordinator.scenes import CHUNKS, capacities_of, reducing
from tests.protocol.coordinator.stage import ELEMENTS, Stage, peer_of

HALF = 2 * ELEMENTS  # bytes of the vector in fp16


def tell(stage: Stage, receiver: PeerId, *arrivals: m.Arrival, **said: Any) -> None:
    stage.say(receiver, m.Arrivals(**{**stage.place(), **said}, arrivals=arrivals))


def next_plan(stage: Stage) -> None:
    stage.reduce()
    stage.persist()
    stage.accumulate()
    stage.offers(*stage.trainers.values())
    stage.close()
    assert stage.state.phase is Phase.REDUCE


def known(stage: Stage) -> dict[tuple[str, str], float]:
    return {(peer, way): capacity.bps for (peer, way), capacity in stage.state.links.capacities.items()}


def test_what_came_in_a_round_is_known_to_the_next_plan() -> None:
    stage, trainers, (relay,) = reducing()
    stage.wait(3)
    ann = trainers[0].peer
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 2.0))
    assert known(stage) == {}
    next_plan(stage)
    assert known(stage) == {(ann, "up"): HALF / 2, (relay, "down"): HALF / 2}


def test_more_bytes_than_were_planned_do_not_count() -> None:
    stage, trainers, (relay,) = reducing()
    stage.wait(3)
    ann = trainers[0].peer
    tell(stage, relay, m.Arrival(ann, 2**53, 0.0, 2.0))
    next_plan(stage)
    assert known(stage)[ann, "up"] == pytest.approx(HALF / 2, rel=0.01)


@pytest.mark.parametrize("sender", ["relay", "nobody"])
def test_bytes_of_who_was_not_planned_to_send_do_not_count(sender: str) -> None:
    stage, _, (relay,) = reducing()
    stage.wait(3)
    tell(stage, relay, m.Arrival(peer_of(sender), HALF, 0.0, 2.0))
    next_plan(stage)
    assert known(stage) == {}


def test_nothing_took_longer_than_until_it_was_told() -> None:
    stage, trainers, (relay,) = reducing()
    stage.wait(4)
    ann = trainers[0].peer
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 1e6))
    next_plan(stage)
    assert known(stage)[ann, "up"] == pytest.approx(HALF / 4)


def test_second_report_and_one_of_another_attempt_are_ignored() -> None:
    stage, trainers, (relay,) = reducing()
    stage.wait(3)
    ann = trainers[0].peer
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 4.0), attempt=stage.round.attempt + 1)
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 2.0))
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 1.0))
    next_plan(stage)
    assert known(stage)[ann, "up"] == HALF / 2


def test_who_receives_after_the_commit_still_tells_of_it() -> None:
    stage, trainers, (relay,) = reducing()
    place = stage.place()
    stage.reduce()
    stage.persist()
    stage.wait(4)
    bob = trainers[1].peer
    stage.say(bob, m.Arrivals(**place, arrivals=(m.Arrival(relay, HALF, 0.0, 4.0),)))
    stage.accumulate()
    stage.offers(*trainers)
    stage.close()
    assert known(stage)[bob, "down"] == pytest.approx(HALF / 4)


def test_averages_come_of_reducers_and_gradients_to_them() -> None:
    stage, trainers, relays = reducing({}, {})
    plan = stage.round.plan
    assert plan is not None
    assert set(planned_sizes(plan, trainers[0].peer)) == set(relays)
    assert set(planned_sizes(plan, relays[0])) == {relays[1], *(trainer.peer for trainer in trainers)}
    whole = sum(planned_sizes(plan, trainers[0].peer).values())
    assert HALF < whole < HALF + CHUNKS * 100


def test_links_that_were_measured_longest_ago_are_forgotten() -> None:
    stage, trainers, (relay,) = reducing()
    stage.state.links.capacities |= capacities_of((PeerId(f"{number:032x}"), 1) for number in range(MOST_KNOWN))
    stage.wait(3)
    tell(stage, relay, m.Arrival(trainers[0].peer, HALF, 0.0, 2.0))
    next_plan(stage)
    assert len(stage.state.links.capacities) == MOST_KNOWN
    assert (trainers[0].peer, "up") in stage.state.links.capacities


def flows_of(stage: Stage, pace: float, duration_s: float, told: dict[PeerId, float] | None = None) -> list[Flow]:
    """Return a round's flows. Two trainers send to the relay, the second from 1 s to 5 s. The second also receives
    averages.
    """
    assert stage.state.links.attempt is not None
    plan = stage.state.links.attempt.plan
    stage.state.links.attempt.plan = replace(plan, pace=pace, duration_s=duration_s)
    first, second, relay = plan.slots[0].peer, plan.slots[1].peer, plan.spans[0].reducer
    stage.wait(9)
    arrivals = m.Arrival(second, HALF, 1.0, 5.0), m.Arrival(first, HALF, 0.5, 3.0)
    tell(stage, relay, *sorted(arrivals, key=lambda arrival: arrival.sender))
    tell(stage, second, m.Arrival(relay, HALF, 1.0, 9.0), holds="0" * 64)
    return list(_as_asked(stage.state.links.attempt, told or {}))


def test_gradients_are_timed_by_pace_and_averages_by_gradients() -> None:
    stage, *_ = reducing()
    *gradients, average = flows_of(stage, pace=1.25, duration_s=5.0)
    assert [(flow.asked_s, flow.in_step) for flow in gradients] == [(4.0, True)] * 2
    assert (average.asked_s, average.in_step) == (4.0, False), "from the second's first chunk to its last"
    assert [flow.is_held_up for flow in (*gradients, average)] == [False, False, True]


def test_without_a_pace_gradients_come_as_fast_as_they_can() -> None:
    stage, *_ = reducing()
    *gradients, _ = flows_of(stage, pace=0.0, duration_s=5.0)
    assert [flow.is_held_up for flow in gradients] == [True, True]


def test_sender_limited_for_its_household_is_not_asked_for_more() -> None:
    """Without this rule, a limited link would seem slower each round, and its limit would keep falling."""
    stage, trainers, (relay,) = reducing()
    told = dict.fromkeys((*(trainer.peer for trainer in trainers), relay), HALF / 20)
    *gradients, average = flows_of(stage, pace=1.25, duration_s=5.0, told=told)
    assert [flow.asked_s for flow in (*gradients, average)] == pytest.approx([20.0] * 3, rel=0.01)


def test_a_rate_that_was_told_counts_for_what_is_learned() -> None:
    stage, trainers, (relay,) = reducing()
    ann = trainers[0].peer
    stage.state.links.capacities |= capacities_of([(ann, HALF // 2), (relay, 100 * HALF)])
    stage.member(trainers[0]).uplink_told = HALF / 2.5
    stage.wait(9)
    tell(stage, relay, m.Arrival(ann, HALF, 0.0, 2.5))
    next_plan(stage)
    assert known(stage)[ann, "up"] == HALF // 2, "a fifth less, and as it was told"


def test_departures_count_from_a_contributor_about_its_reducers() -> None:
    stage, trainers, relays = reducing({}, {})
    assert stage.state.links.attempt is not None
    ann, bob = trainers[0].peer, trainers[1].peer
    stage.wait(9)
    for relay in relays:
        tell(stage, relay, m.Arrival(ann, HALF, 0.0, 4.0), m.Arrival(bob, HALF, 0.0, 4.0))
    departures = m.Departure(relays[0], 3.5), m.Departure(bob, 9.0), m.Departure(peer_of("nobody"), 9.0)
    tell(stage, ann, m.Arrival(relays[0], HALF, 1.0, 9.0), holds="0" * 64, departures=departures)
    assert stage.state.links.attempt.full_s == {(ann, relays[0]): 3.5}
    gradients = [flow for flow in _as_asked(stage.state.links.attempt, {}) if flow.in_step]
    said = {(flow.sender, flow.receiver): flow.full_s for flow in gradients}
    assert said[ann, relays[0]] == 3.5
    assert said[ann, relays[1]] == 0.0, "it says so of its links, and of this one nothing"
    assert said[bob, relays[0]] is None, "it has said nothing"


def test_link_is_not_full_while_its_reducer_reads_nothing() -> None:
    stage, trainers, (relay,) = reducing()
    ann, bob = trainers[0].peer, trainers[1].peer
    stage.wait(9)
    arrivals = m.Arrival(ann, HALF, 0.0, 4.0, held_s=3.0), m.Arrival(peer_of("nobody"), 1, 0.0, 1.0, held_s=1.0)
    tell(stage, relay, *sorted((*arrivals, m.Arrival(bob, HALF, 0.0, 4.0)), key=str))
    tell(stage, ann, m.Arrival(relay, HALF, 1.0, 9.0), holds="0" * 64, departures=(m.Departure(relay, 3.5),))
    assert stage.state.links.attempt is not None
    assert stage.state.links.attempt.held_s == {(ann, relay): 3.0, (bob, relay): 0.0}
    gradients = {flow.sender: flow.full_s for flow in _as_asked(stage.state.links.attempt, {}) if flow.in_step}
    assert gradients == {ann: 0.5, bob: None}


def test_pair_limit_found_twice_is_kept_by_the_next_plan() -> None:
    stage, trainers, relays = reducing({}, {}, bps=(HALF, HALF))
    ann, bob = trainers[0].peer, trainers[1].peer
    stage.state.links.capacities |= capacities_of((trainer.peer, HALF) for trainer in trainers)
    next_plan(stage)
    before = stage.round.plan
    assert before is not None
    for _ in range(2):
        assert stage.state.links.attempt is not None
        stage.state.links.attempt.plan = replace(stage.state.links.attempt.plan, pace=1.25)
        stage.wait(15)
        for relay in relays:
            tell(stage, relay, *sorted((m.Arrival(ann, HALF, 0.0, 14.0), m.Arrival(bob, HALF, 0.0, 1.0)), key=str))
        departures = m.Departure(relays[0], 14.0), m.Departure(relays[1], 1.0)
        tell(stage, ann, holds="0" * 64, departures=departures)
        next_plan(stage)
    assert stage.state.links.pairs.keys() == {(ann, relays[0])}
    assert {known(stage)[peer, way] for peer in (ann, *relays) for way in WAYS} == {HALF}
    after = stage.round.plan
    assert after is not None
    assert parts_of(after.spans).get(relays[0], 0.0) < 0.2 < parts_of(before.spans)[relays[0]]


@pytest.mark.parametrize("is_first", [True, False])
def test_averages_are_timed_from_last_first_chunk_to_last_chunk(is_first: bool) -> None:
    stage, trainers, (relay,) = reducing()
    assert stage.state.links.attempt is not None
    one, other = sorted(trainer.peer for trainer in trainers)[:2]
    stage.wait(9)
    slow, quick = (one, other) if is_first else (other, one)
    arrivals = m.Arrival(slow, HALF, 1.0, 5.0), m.Arrival(quick, HALF, 0.5, 3.0)
    tell(stage, relay, *sorted(arrivals, key=lambda arrival: arrival.sender))
    tell(stage, quick, m.Arrival(relay, HALF, 1.0, 9.0), holds="0" * 64)
    assert [flow.asked_s for flow in _as_asked(stage.state.links.attempt, {})][-1] == 4.0


def test_averages_of_one_that_told_nothing_came_in_time() -> None:
    stage, trainers, (relay,) = reducing()
    assert stage.state.links.attempt is not None
    stage.wait(9)
    tell(stage, trainers[0].peer, m.Arrival(relay, HALF, 1.0, 9.0), holds="0" * 64)
    (average,) = _as_asked(stage.state.links.attempt, {})
    assert not average.is_held_up


@pytest.mark.parametrize(("in_parts", "is_tried"), [(1.0, True), (0.5, False)])
def test_unmet_hope_of_a_link_ends_with_its_round(in_parts: float, is_tried: bool) -> None:
    """The plan hoped for twice the relay's known rate. The gradients reach the relay in `in_parts` times their planned
    time.
    """
    stage, trainers, (relay,) = reducing(bps=(HALF, HALF))
    stage.state.links.capacities[relay, "down"].is_floor = stage.state.links.capacities[relay, "up"].is_floor = True
    next_plan(stage)
    assert stage.state.links.attempt is not None
    plan = stage.state.links.attempt.plan = replace(
        stage.state.links.attempt.plan, pace=1.0
    )  # as planned, so no flow is held up
    stage.wait(plan.duration_s + 1)
    last_s = in_parts * plan.duration_s
    senders = sorted(trainer.peer for trainer in trainers)
    tell(stage, relay, *(m.Arrival(sender, HALF, 0.0, last_s) for sender in senders))
    next_plan(stage)
    assert stage.state.links.capacities[relay, "down"].is_tried is is_tried


@pytest.mark.parametrize(("part", "is_held_up"), [(1.0, False), (0.5, True), (0.99, False)])
def test_cut_short_gradient_is_asked_only_for_what_came(part: float, is_held_up: bool) -> None:
    """The round drops a slow sender that sent only some of its bytes in the planned time."""
    stage, trainers, (relay,) = reducing()
    assert stage.state.links.attempt is not None
    stage.state.links.attempt.plan = replace(stage.state.links.attempt.plan, pace=1.0, duration_s=4.0)
    stage.wait(9)
    slow = trainers[0].peer
    tell(stage, relay, m.Arrival(slow, int(part * HALF), 0.0, 3.9))
    (flow,) = _as_asked(stage.state.links.attempt, {})
    assert flow.is_held_up is is_held_up


def test_gradient_is_whole_without_its_weightless_chunks() -> None:
    stage, _, (relay,) = reducing()
    assert stage.state.links.attempt is not None
    plan = stage.state.links.attempt.plan
    first, *others = plan.slots
    light = replace(first, weights=(m.Weight(0, CHUNKS // 2, 0), m.Weight(CHUNKS // 2, CHUNKS, 5)))
    stage.state.links.attempt.plan = replace(plan, pace=1.0, duration_s=4.0, slots=(light, *others))
    stage.wait(9)
    tell(stage, relay, m.Arrival(first.peer, HALF // 2, 0.0, 3.9))
    (flow,) = _as_asked(stage.state.links.attempt, {})
    assert not flow.is_held_up
