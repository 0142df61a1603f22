"""Each requested fault hits its target once and is counted. The channel and the database fail as real ones do."""

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Record
from peer_agent.protocol.messages import Message, Plan
from peer_agent.simulation import effects
from peer_agent.simulation.database import CLAIM_S, RENEW_S, Database, cover
from peer_agent.simulation.effects import EFFECTS, obey, order
from peer_agent.simulation.faults import NOBODY, Faults, Kind, LetterFault, Ordered, PeerFault, SiteFault
from peer_agent.simulation.site import CAPACITY, LOOK_S
from peer_agent.simulation.world import Setting, World
from tests.simulation.checked_world import checked_world, relays, run_to, state, trainers

OF_RELAYS = ("slow", "full")
DATABASE: tuple[Kind, ...] = ("failed", "answer lost", "unknown and not written")


def _world() -> World:
    world, _ = checked_world(trainers=4, relays=2, steps=60, samples_per_s=1.0)
    obey(world)
    return world


def test_every_fault_has_its_deed() -> None:
    assert {*get_args(PeerFault), *get_args(SiteFault), "night"} == set(EFFECTS)


@pytest.mark.parametrize("kind", sorted(EFFECTS))
def test_ordered_fault_happens_once_in_its_round(kind: Kind) -> None:
    world = _world()
    of_peer = kind in get_args(PeerFault)
    peer = NOBODY if not of_peer else relays(world)[1].peer if kind in OF_RELAYS else trainers(world)[1].peer
    order(world, kind, peer, round_=3, lasts_s=12.0)
    assert world.run_steps(2, 100)
    assert world.faults.fired == {kind: 1}
    assert not world.faults.untaken
    assert world.run_steps(3, 600)
    assert world.faults.fired == {kind: 1}


def test_once_all_is_well_nobody_goes_for_a_night_that_has_begun() -> None:
    """Once faults end, no machine goes to sleep, even if a night has begun. Otherwise sleeping machines could decide
    the result.
    """
    world = _world()
    assert world.run_steps(2, 100)
    effects.inject(world, "night", NOBODY, 3600.0)
    effects.heal(world)
    world.wait(effects.EVENING_S + 1.0)
    assert [(trainer.alive, trainer.frozen) for trainer in trainers(world)] == [(True, False)] * 4


@pytest.mark.parametrize("kind", [kind for kind in get_args(LetterFault) if kind not in ("lost notice", "unheard")])
def test_an_ordered_letter_is_lost_doubled_or_late_once(kind: LetterFault) -> None:
    world = _world()
    victim = trainers(world)[0].peer
    order(world, kind, victim, round_=2, of="Offer" if kind.endswith("up") else "Cut")
    assert world.run_steps(5, 400)
    assert world.faults.fired == {kind: 1}
    assert not world.faults.untaken


@pytest.mark.parametrize("kind", DATABASE)
def test_an_ordered_write_fails_once(kind: Kind) -> None:
    world = _world()
    order(world, kind, round_=3)
    assert world.run_steps(5, 400)
    assert world.faults.fired == {kind: 1}


def test_fault_for_another_peer_round_or_message_stays_ordered() -> None:
    faults, one, other = Faults(1), PeerId("1"), PeerId("2")
    faults.order(Ordered("lost up", one, 3, "Offer"))
    assert not faults.strikes("lost up", other, 3, "Offer")
    assert not faults.strikes("lost up", one, 2, "Offer")
    assert not faults.strikes("lost down", one, 3, "Offer")
    assert not faults.strikes("lost up", one, 3, "Report")
    assert len(faults.untaken) == 1
    assert faults.strikes("lost up", one, 3, "Offer")
    assert not faults.strikes("lost up", one, 3, "Offer"), "taken once"
    assert faults.fired == {"lost up": 1}


# --- sockets


class Heard:
    def __init__(self, world: World, peer: PeerId) -> None:
        self.said: list[Message | Plan] = []
        victim = world.peers[peer]
        self.honest = victim.deliver
        setattr(victim, "deliver", self.hear)  # noqa: B010

    def hear(self, message: Message | Plan) -> None:
        self.said.append(message)
        self.honest(message)

    def count(self, kind: type[m.Message]) -> int:
        return sum(isinstance(message, kind) for message in self.said)


def test_a_hello_that_is_lost_is_asked_for_again() -> None:
    world = World(Setting(trainers=2, relays=1))
    victim = trainers(world)[0]
    order(world, "lost up", victim.peer, of="Hello")
    heard = Heard(world, victim.peer)
    world.wait(1 + 0.5)
    assert victim.peer not in state(world).members
    world.wait(2 * LOOK_S)
    assert victim.peer in state(world).members
    assert heard.count(m.Rehello) == 2


def test_socket_that_missed_a_new_host_finds_it_in_the_database() -> None:
    world = World(Setting(trainers=2, relays=1, samples_per_s=0.1))
    world.wait(5)
    victim, host = trainers(world)[0], world.host
    assert host is not None
    order(world, "unheard", victim.peer)
    heard = Heard(world, victim.peer)
    world.replace_host(host, 1.0)
    world.wait(1.0 + 0.5)
    assert world.host is not host
    assert victim.session is not None, "its socket is as open as before"
    assert trainers(world)[1].peer in state(world).members
    assert victim.peer not in state(world).members
    world.wait(2 * LOOK_S + 1)
    assert heard.count(m.Rehello) == 1
    assert victim.peer in state(world).members


def test_messages_of_one_socket_keep_order_even_if_one_is_late() -> None:
    world = World(Setting(trainers=1, relays=1, samples_per_s=1.0))
    world.wait(5)
    socket = trainers(world)[0].session
    assert socket is not None
    heard = Heard(world, socket.peer.peer)
    order(world, "late down", socket.peer.peer, of="Notice")
    order(world, "twice down", socket.peer.peer, of="Notice")
    for number in range(5):
        socket.down(m.Notice(run=world.run_id, code=str(number), text=""))
    world.wait(30)
    assert [said.code for said in heard.said if isinstance(said, m.Notice)] == ["0", "0", "1", "2", "3", "4"]


def test_a_notice_that_is_lost_leaves_a_member_that_is_gone() -> None:
    world = World(Setting(trainers=2, relays=1))
    world.wait(5)
    gone = trainers(world)[0]
    order(world, "lost notice", gone.peer, round_=world.database.step + 1)
    gone.kill()
    world.wait(2)
    assert gone.peer in state(world).members
    assert world.faults.fired == {"lost notice": 1}


def test_new_socket_is_heard_though_the_old_ones_end_was_lost() -> None:
    world, _ = checked_world(trainers=2, relays=1, steps=20)
    world.run_steps(1)
    back = trainers(world)[0]
    order(world, "lost notice", back.peer, round_=world.database.step + 1)
    back.reconnect(0.2)
    world.wait(2)
    host = world.host
    assert host is not None
    assert host.sockets[back.peer] is back.session
    assert world.run_steps(3, 60)


def test_nothing_passes_while_the_layer_is_away() -> None:
    world = World(Setting(trainers=1, relays=1, samples_per_s=1.0))
    world.wait(5)
    heard = Heard(world, trainers(world)[0].peer)
    effects.inject(world, "layer away", NOBODY, 6.0)
    world.wait(0.2)
    before = len(heard.said)
    world.wait(5.5)
    assert {type(said) for said in heard.said[before:]} <= {m.Rehello}, "that is the socket's own"
    assert world.run_steps(2, 60)


def test_the_channel_of_a_frozen_host_holds_only_so_many_letters() -> None:
    world = World(Setting(trainers=1, relays=1))
    world.wait(5)
    host, socket = world.host, trainers(world)[0].session
    assert host is not None
    assert socket is not None
    host.freeze()
    for _ in range(CAPACITY + 50):
        socket.up(m.Heartbeat(run=world.run_id, index=0))
    world.wait(1)
    assert host._letters == CAPACITY
    host.thaw()
    assert world.run_steps(1, 60)


def test_overtaken_host_commits_nothing_and_steps_back() -> None:
    world, _ = checked_world(trainers=3, relays=2, steps=40, samples_per_s=1.0)
    world.run_steps(2)
    run_to(world, Phase.REDUCE)
    old = world.host
    assert old is not None
    world.overtake_host(CLAIM_S + 20)
    world.wait(CLAIM_S + 10)
    assert world.host is not old
    assert state(world).fence == old.state.fence + 1
    world.wait(15)
    assert not old.alive
    assert world.run_steps(3, 100)
    assert {record.fence for record in world.database.records[-3:]} == {state(world).fence}


def test_a_host_whose_claim_is_gone_stands_back_when_it_renews() -> None:
    world = World(Setting(trainers=0, relays=0))
    old = world.host
    assert old is not None
    world.database.claim()
    world.wait(RENEW_S + 1)
    assert not old.alive, "though it has nothing to write, by which it would learn of it"


# --- the database


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9))))
def test_covered_ranges_are_joined(pieces: list[tuple[int, int]]) -> None:
    ranges: list[tuple[int, int]] = []
    for start, length in pieces:
        cover(ranges, start, start + length)
    covered = {place for start, length in pieces for place in range(start, start + length)}
    assert {place for start, stop in ranges for place in range(start, stop)} == covered
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges)), "sorted and apart"


def test_a_ledger_row_is_written_for_each_contribution() -> None:
    world = World(Setting(trainers=3, relays=1, steps=9))
    world.run_steps(3)
    said = [(r.index, c.peer, c.samples, c.credit) for r in world.database.records for c in r.contributions]
    assert [(row.index, row.machine, row.samples, row.credit) for row in world.database.ledger] == said


def test_write_with_a_lost_answer_is_found_and_not_repeated() -> None:
    world = World(Setting(trainers=2, relays=1, steps=9))
    world.run_steps(1)
    database, record = world.database, world.database.records[-1]
    rows = len(database.ledger)
    assert database.persist(record)[0] == "committed", "the same record again"
    assert len(database.ledger) == rows
    database.claim()
    world.wait(0.01)
    assert database.persist(_next(database))[0] == "stale", "another host's fence"


def _next(database: Database) -> Record:
    last = database.records[-1]
    return replace(last, index=last.index + 1, step=last.step + 1, previous=database.digest)


def test_absent_database_costs_only_the_time_of_its_absence() -> None:
    world, _ = checked_world(trainers=3, relays=1, steps=20)
    world.run_steps(2)
    effects.inject(world, "database away", NOBODY, 30.0)
    step = world.database.step
    world.wait(29)
    assert world.database.step == step
    assert world.run_steps(3, 30)


def test_restart_in_a_later_epoch_leases_no_committed_unit_again() -> None:
    """The new host knows only the rows. The invariants detect any unit that is leased again."""
    world, _ = checked_world(trainers=3, relays=1, steps=200, shards=(40, 17))
    assert world.run(
        lambda: max(epoch for epoch, _ in world.database.coverage) >= 3 if world.database.coverage else False
    )
    world.restart_host(0.5)
    assert world.run_steps(12, 300)
