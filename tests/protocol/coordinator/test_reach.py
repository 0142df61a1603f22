"""Listeners may reduce if other peers can reach them. One person's reports have limited effect."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS, Capacity
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.reach import reached
from peer_agent.protocol.coordinator.state import MOST_LISTENERS, NO_ACCUMULATOR, Member
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.coordinator.scenes import pair
from tests.protocol.coordinator.stage import RUN, Stage, Trainer, peer_of


def member(name: str, *reaches: Member, person: str = "", role: Role = Role.TRAINER, keeps: bool = False) -> Member:
    peers = frozenset(other.peer for other in reaches)
    found = Member(peer_of(name), person or name, name, role, NO_ACCUMULATOR, 0.0, url="wss://x", reaches=peers)
    found.reduces, found.may_keep = True, keeps
    return found


LISTENERS = [member(f"l{i}") for i in range(8)]
RELAY = member("relay", *LISTENERS, role=Role.RELAY, keeps=True)


def named(peers: set[PeerId]) -> set[int]:
    return {number for number, each in enumerate(LISTENERS) if each.peer in peers}


def people(*reaches: set[int]) -> list[Member]:
    return [member(f"p{i}", *(LISTENERS[number] for number in each)) for i, each in enumerate(reaches)]


ALL = set(range(8))


@pytest.mark.parametrize(
    ("reaches", "expected"),
    [
        ([ALL, ALL, ALL], ALL),
        ([ALL, ALL - {3}, ALL], ALL - {3}),
        # each person reports a quarter of the listeners as unreachable
        ([ALL - {1, 2}, ALL - {3, 4}, ALL], ALL - {1, 2, 3, 4}),
        ([ALL, set(), ALL], ALL),  # a peer that reaches no listener excludes none
        ([ALL, ALL - {1, 2, 3}, ALL], ALL),
        ([ALL, set(), set()], set()),  # but here most people reach no listener
        ([set()], set()),
        ([{0, 1}, {0, 1}, {0, 1}], {0, 1}),
    ],
)
def test_who_is_reached(reaches: list[set[int]], expected: set[int]) -> None:
    assert named(reached(LISTENERS, people(*reaches), [RELAY])) == expected


def test_the_machines_of_one_person_speak_as_one() -> None:
    """However many machines a person has, they can exclude at most a quarter of the listeners."""
    liars = [member(f"e{i}", *(LISTENERS[j] for j in ALL - {i}), person="eve") for i in range(8)]
    assert named(reached(LISTENERS, [*people(ALL, ALL), *liars], [RELAY])) == ALL


def test_nobody_has_to_reach_itself() -> None:
    trainers = [member(f"l{i}", *(LISTENERS[j] for j in ALL - {i})) for i in range(8)]
    assert named(reached(LISTENERS, trainers, [RELAY])) == ALL
    alone = LISTENERS[:1]
    assert named(reached(alone, alone, [RELAY])) == {0}


def test_a_keeper_of_the_log_has_to_get_the_averages() -> None:
    deaf = member("relay", role=Role.RELAY, keeps=True)
    assert named(reached(LISTENERS, people(ALL), [deaf])) == set()
    assert named(reached(LISTENERS, people(ALL), [])) == set()
    other = member("r2", LISTENERS[5], role=Role.RELAY, keeps=True)
    assert named(reached(LISTENERS, people(ALL), [deaf, other])) == {5}


# --- in a run


def listening(stage: Stage, trainer: Trainer) -> None:
    stage.hello(trainer, url=f"wss://{trainer.name}", fingerprint="f" * 64, reduces=True)


def reaches(stage: Stage, peer: PeerId, *listeners: PeerId) -> None:
    stage.say(peer, m.Reaches(run=RUN, listeners=listeners))


def test_a_trainer_that_all_reach_reduces_beside_the_relay() -> None:
    stage, ann, bob = pair()
    listening(stage, ann)
    for peer in (bob.peer, peer_of("relay")):
        reaches(stage, peer, ann.peer)
    for peer in (ann.peer, bob.peer, peer_of("relay")):
        for way in WAYS:
            stage.state.links.capacities[peer, way] = Capacity(1e6, is_floor=False, measured_at=0)
    stage.accumulate()
    stage.offers(ann, bob)
    assert {span.reducer for span in stage.spans()} == {ann.peer, peer_of("relay")}
    announced = [command for command in stage.said if isinstance(command, e.Announce)][-1]
    assert set(announced.keepers) == {ann.peer, peer_of("relay")}, "it gets the plan whole"
    assert announced.peers == (bob.peer,)


def test_one_that_is_not_reached_has_no_part() -> None:
    stage, ann, bob = pair()
    listening(stage, ann)
    reaches(stage, peer_of("relay"), ann.peer)
    for peer in (ann.peer, bob.peer, peer_of("relay")):
        for way in WAYS:
            stage.state.links.capacities[peer, way] = Capacity(1e6, is_floor=False, measured_at=0)
    stage.accumulate()
    stage.offers(ann, bob)
    assert {span.reducer for span in stage.spans()} == {peer_of("relay")}
    assert not stage.state.reached


def test_what_was_reached_once_counts_until_it_is_taken_back() -> None:
    stage, ann, bob = pair()
    listening(stage, ann)
    for peer in (bob.peer, peer_of("relay")):
        reaches(stage, peer, ann.peer)
    stage.wait(2)
    assert stage.state.reached == {ann.peer}
    reaches(stage, bob.peer)
    stage.wait(2)
    assert not stage.state.reached


def test_not_everybody_is_dialled_by_everybody() -> None:
    stage = Stage()
    stage.relay()
    for number in range(MOST_LISTENERS + 3):
        listening(stage, stage.trainer(f"t{number:03}"))
    told = stage.state.listeners()
    assert len(told) == MOST_LISTENERS + 1
    assert peer_of("relay") in {listener.peer for listener in told}
    late = stage.state.members[peer_of(f"t{MOST_LISTENERS:03}")]
    assert late.peer not in {listener.peer for listener in told}
    stage.handle(e.Lost(peer_of("t000")))
    assert late.peer in {listener.peer for listener in stage.state.listeners()}, "the next one takes the place"
