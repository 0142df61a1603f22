"""Probes of idle links: which links are probed and when, and which of the two ends' reports count."""

import math

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS, Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import learn_probe
from peer_agent.protocol.bandwidth.links import Probed
from peer_agent.protocol.bandwidth.probing import EXPECTED_S, PROBE_BPS
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Send
from peer_agent.protocol.coordinator.probing import IDLE_UNTIL, MOST_PROBES, probe, take_probed
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.stage import RUN, Stage, peer_of, sent

RELAY = peer_of("relay")


def speaking(*names: str, batch: int = 24) -> Stage:
    """Return a run with a relay and trainers, all of which report which listeners they can reach."""
    stage = Stage(batch=batch)
    stage.relay()
    stage.say(RELAY, m.Reaches(run=RUN, listeners=()))
    for name in names:
        trainer = stage.trainer(name)
        stage.say(trainer.peer, m.Reaches(run=RUN, listeners=(RELAY,)))
    return stage


def probes(stage: Stage) -> list[tuple[PeerId, int]]:
    """Return the peers asked to begin a probe, with the number of the probe."""
    return [
        (peer, message.number)
        for peer in stage.trainers
        for message in sent(stage.said, m.Probe, peer)
        if isinstance(message, m.Probe) and message.begins
    ]


def test_one_at_a_time_and_each_a_few_times_where_nobody_answers() -> None:
    stage = speaking("ann", "bob")
    stage.wait(2)
    ((first, number),) = probes(stage)
    asked = sent(stage.said, m.Probe, RELAY)
    assert asked == [m.Probe(run=RUN, number=number, partner=first, begins=False)]
    for peer in (first, RELAY):
        stage.say(peer, m.Probed(run=RUN, number=number, size=1_000_000, seconds=1.0))
    stage.wait(2)
    assert [peer for peer, _ in probes(stage)] == [first, *set(stage.trainers).difference([first])]
    stage.wait(2 * MOST_PROBES * EXPECTED_S)
    assert [number for _, number in probes(stage)[1:]] == list(range(2, 2 + MOST_PROBES))
    assert len({peer for peer, _ in probes(stage)[1:]}) == 1, "who showed what its link to the relay carries is done"


def test_who_comes_anew_is_not_measured_anew() -> None:
    """If every return caused a probe, a machine that often pauses would use up its monthly traffic."""
    stage = speaking("ann")
    begun = set[int]()
    for _ in range(2 * MOST_PROBES):
        stage.wait(2 * EXPECTED_S)
        begun |= {number for _, number in probes(stage)}
        stage.handle(e.Lost(peer_of("ann")))
        stage.trainer("ann")
        stage.say(peer_of("ann"), m.Reaches(run=RUN, listeners=(RELAY,)))
    assert len(begun) == MOST_PROBES


def test_what_both_ends_say_is_learned_and_nobody_elses_word() -> None:
    stage = speaking("ann", "bob")
    stage.wait(2)
    ((peer, number),) = probes(stage)
    (other,) = set(stage.trainers).difference([peer])
    stage.say(other, m.Probed(run=RUN, number=number, size=9_000_000, seconds=1.0))
    stage.say(peer, m.Probed(run=RUN, number=number, size=4_000_000, seconds=1.0))
    stage.say(peer, m.Probed(run=RUN, number=number, size=8_000_000, seconds=1.0))  # only the first report counts
    stage.say(RELAY, m.Probed(run=RUN, number=number, size=2_000_000, seconds=1.0))
    known = {direction: capacity.bps for direction, capacity in stage.state.links.capacities.items()}
    assert known == {(peer, "down"): 4e6, (RELAY, "up"): 4e6, (peer, "up"): 2e6, (RELAY, "down"): 2e6}


def test_a_probe_shows_no_more_than_its_sender_may_send() -> None:
    """A regression: two accomplices said that 2^53 bytes came, and the one that averages got 91 % of the vector."""
    stage = speaking("ann", "eve")
    auxiliary = stage.relay("nas", Role.AUXILIARY)
    stage.say(auxiliary, m.Reaches(run=RUN, listeners=()))
    stage.say(RELAY, m.Reaches(run=RUN, listeners=(auxiliary,)))
    stage.say(peer_of("ann"), m.Reaches(run=RUN, listeners=(RELAY, auxiliary)))
    stage.say(peer_of("eve"), m.Reaches(run=RUN, listeners=(auxiliary,)))
    stage.wait(2)
    for _ in range(8):
        for number, begun in list(stage.state.links.probes.items()):
            is_honest = auxiliary not in (begun.member, begun.listener)
            for each in (begun.member, begun.listener):
                size, took_s = (100_000_000, 1.0) if is_honest else (2**53, 0.25)
                stage.say(each, m.Probed(run=RUN, number=number, size=size, seconds=took_s))
        stage.wait(8)
    assert stage.state.links.capacities[RELAY, "up"].bps == pytest.approx(1e8)
    assert stage.state.links.capacities[auxiliary, "up"].bps == pytest.approx(PROBE_BPS)
    stage.accumulate()
    stage.offers(*stage.trainers.values())
    chunks = sum(span.stop - span.first for span in stage.spans() if span.reducer == auxiliary)
    assert chunks / stage.state.grid.chunks < 0.75


def test_more_seconds_than_passed_or_too_few_are_no_measure() -> None:
    stage = speaking("ann")
    stage.wait(2)
    ((peer, number),) = probes(stage)
    stage.say(peer, m.Probed(run=RUN, number=number, size=4_000_000, seconds=1000.0))
    stage.say(RELAY, m.Probed(run=RUN, number=number, size=4_000_000, seconds=0.0))
    assert not stage.state.links.capacities


def test_what_a_round_has_slowed_is_no_measure() -> None:
    stage = speaking("ann")
    stage.wait(2)
    ((peer, number),) = probes(stage)
    stage.wait(1)
    said = m.Probed(run=RUN, number=number, size=4_000_000, seconds=1.0)
    stage.state.phase = Phase.OFFER
    take_probed(stage.state, stage.state.members[peer], said)
    stage.state.phase = Phase.ACCUMULATE
    stage.state.rounds += 1
    take_probed(stage.state, stage.state.members[RELAY], said)
    assert not stage.state.links.capacities


def test_no_word_lowers_what_is_known() -> None:
    stage = speaking("ann")
    for peer, way in ((RELAY, "up"), (RELAY, "down"), (peer_of("ann"), "down")):
        stage.state.links.capacities[peer, way] = Capacity(5e6, is_floor=False, measured_at=0)  # type: ignore[index]
    stage.wait(2)
    ((peer, number),) = probes(stage)
    for each in (peer, RELAY):
        stage.say(each, m.Probed(run=RUN, number=number, size=1000, seconds=1.0))
    assert {c.bps for direction, c in stage.state.links.capacities.items() if direction != (peer, "up")} == {5e6}


def test_peers_with_known_links_or_unsaid_reach_are_not_probed() -> None:
    stage = Stage()
    stage.relay()
    stage.trainer("ann")
    stage.wait(3)
    assert not sent(stage.said, m.Probe), "it has not said whom it reaches"
    stage = speaking("ann")
    for way in ("up", "down"):
        stage.state.links.capacities[peer_of("ann"), way] = Capacity(5e6, is_floor=False, measured_at=0)
    stage.wait(3)
    assert not sent(stage.said, m.Probe)


def test_a_round_that_is_near_or_open_is_not_disturbed() -> None:
    stage = speaking("ann")
    stage.state.awake_samples = math.ceil(IDLE_UNTIL * stage.state.recipe.target_batch)
    assert probe(stage.state) == []
    stage.state.awake_samples = 0
    stage.state.phase = Phase.OFFER
    assert probe(stage.state) == []
    stage.state.phase = Phase.ACCUMULATE
    assert len(probe(stage.state)) == 2


def test_a_measure_shows_the_least_and_lowers_nothing() -> None:
    """The other peer, or the path between the two, may have limited the probe."""
    up: Direction = (peer_of("ann"), "up")
    down: Direction = (RELAY, "down")
    known: dict[Direction, Capacity] = {down: Capacity(5e6, is_floor=False, measured_at=0)}
    learn_probe(known, Flow(peer_of("ann"), RELAY, 1_000_000, 0.0, 1.0), 1)
    assert known == {up: Capacity(1e6, is_floor=True, measured_at=1), down: Capacity(5e6, False, 0)}
    learn_probe(known, Flow(peer_of("ann"), RELAY, 900_000, 0.0, 1.0), 2)
    assert known[up] == Capacity(1e6, is_floor=True, measured_at=1)


def test_second_probe_is_with_the_fastest_of_the_faster_peers() -> None:
    """If the partner were slower, there would be no telling which of the two peers limited the probe."""
    stage = speaking("ann")
    ann = peer_of("ann")
    eve, fred = others = [stage.relay(name) for name in ("eve", "fred")]
    for other in others:
        stage.say(other, m.Reaches(run=RUN, listeners=()))
    stage.say(ann, m.Reaches(run=RUN, listeners=(RELAY, *others)))
    probed = stage.state.links.probed[ann] = Probed(begun=1)
    for way in WAYS:
        stage.state.links.capacities[ann, way] = Capacity(1e6, is_floor=True, measured_at=0)
        for other, bps in zip((RELAY, eve, fred), (1.1e6, 3e6, 5e6), strict=True):
            stage.state.links.capacities[other, way] = Capacity(bps, is_floor=True, measured_at=0)
    probed.partners = {RELAY, *others}
    assert partners(stage, ann) == [fred]
    for other in others:
        stage.state.links.capacities[other, "up"].bps = 1.1e6
    assert partners(stage, ann) == [], "an equal one shows nothing new"


def test_peers_probed_with_slower_ones_probe_each_other_once() -> None:
    stage, ann, eve = two_relays()
    probed = stage.state.links.probed[ann] = Probed(begun=1)
    probed.partners = {RELAY}
    for way in WAYS:
        stage.state.links.capacities[RELAY, way] = Capacity(5e6, is_floor=True, measured_at=0)
        stage.state.links.capacities[ann, way] = Capacity(5e6, is_floor=True, measured_at=0)
        stage.state.links.capacities[eve, way] = Capacity(4.9e6, is_floor=True, measured_at=0)
    assert partners(stage, ann) == [eve]
    probed.partners = {RELAY, eve}
    assert partners(stage, ann) == [], "they have shown what they can to each other"
    probed.partners = {RELAY}
    stage.state.links.capacities[eve, "up"].bps = 4e6
    assert partners(stage, ann) == [], "one that is slower shows nothing"
    for way in WAYS:
        stage.state.links.capacities[eve, way] = Capacity(4.9e6, is_floor=False, measured_at=0)
    assert partners(stage, ann) == [], "nor does one whose end is known"


def partners(stage: Stage, peer: PeerId) -> list[PeerId]:
    stage.state.links.probes.clear()
    said = [each.message for each in probe(stage.state) if isinstance(each, Send) and each.peers == (peer,)]
    return [message.partner for message in said if isinstance(message, m.Probe)]


def two_relays() -> tuple[Stage, PeerId, PeerId]:
    """Return a run in which Ann reaches two relays, the second of which has been faster so far."""
    stage = speaking("ann")
    eve = stage.relay("eve")
    stage.say(eve, m.Reaches(run=RUN, listeners=()))
    stage.say(peer_of("ann"), m.Reaches(run=RUN, listeners=(RELAY, eve)))
    for way in WAYS:
        stage.state.links.capacities[RELAY, way] = Capacity(5e6, is_floor=True, measured_at=0)
        stage.state.links.capacities[eve, way] = Capacity(9e6, is_floor=True, measured_at=0)
    return stage, peer_of("ann"), eve


def answered(stage: Stage, bps: int) -> None:
    number, found = max(stage.state.links.probes.items())
    stage.wait(1)
    for peer in (found.member, found.listener):
        stage.say(peer, m.Probed(run=RUN, number=number, size=bps, seconds=1.0))


def test_probe_of_one_pair_does_not_limit_the_whole_link() -> None:
    """The path between two regions carries little, so the next probe uses another peer."""
    stage, ann, eve = two_relays()
    stage.wait(2)
    assert next(iter(stage.state.links.probes.values())).listener == eve
    answered(stage, 100_000)
    assert stage.state.links.capacities[ann, "up"] == Capacity(1e5, is_floor=True, measured_at=stage.state.rounds)
    stage.wait(1)
    assert next(iter(stage.state.links.probes.values())).listener == RELAY
    answered(stage, 3_000_000)
    known = stage.state.links.capacities[ann, "up"]
    assert (known.bps, known.is_floor) == (3e6, True)


def test_relay_is_preferred_among_probe_partners_of_like_speed() -> None:
    stage, ann, eve = two_relays()
    bob = stage.trainer("bob")
    stage.say(bob.peer, m.Reaches(run=RUN, listeners=()))
    member = stage.state.members[bob.peer]
    stage.state.listening[bob.peer] = member
    stage.say(ann, m.Reaches(run=RUN, listeners=(bob.peer, RELAY, eve)))
    for way in WAYS:
        stage.state.links.capacities[bob.peer, way] = Capacity(9.01e6, is_floor=False, measured_at=0)
    assert partners(stage, ann) == [eve]
    probed = stage.state.links.probed[ann] = Probed()
    probed.partners = {RELAY, eve}
    assert partners(stage, ann) == [bob.peer], "somebody else"
