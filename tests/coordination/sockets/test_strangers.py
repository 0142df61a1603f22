"""Sockets of strangers, and machines that are here twice."""

from coordination.sockets import strangers as doorway
from coordination.sockets.strangers import Strangers, Takeovers
from peer_agent.protocol.identifiers import PeerId

TEO, NOOR = PeerId("0a" * 16), PeerId("0b" * 16)


def test_the_stranger_that_takes_longest_makes_room() -> None:
    strangers: Strangers[int] = Strangers()
    assert {strangers.enter(number) for number in range(doorway.STRANGERS)} == {None}
    strangers.leave(0)
    assert strangers.enter(1000) is None
    assert strangers.enter(1001) == 1


def test_two_that_take_the_session_from_each_other_are_noticed() -> None:
    takeovers = Takeovers()
    times = [takeovers.count(TEO, "run", second) for second in range(doorway.TAKEOVERS + 1)]
    assert times == [False] * doorway.TAKEOVERS + [True]
    assert not takeovers.count(TEO, "run", 10.0), "they were told; it is counted anew"


def test_a_network_that_fails_now_and_then_is_not_two() -> None:
    takeovers = Takeovers()
    between_s = 1.01 * doorway.TAKEOVERS_S / doorway.TAKEOVERS
    assert not any(takeovers.count(TEO, "run", number * between_s) for number in range(1000))


def test_takeovers_of_so_many_machines_are_counted_and_the_oldest_forgotten() -> None:
    takeovers = Takeovers()
    for second in range(doorway.TAKEOVERS):
        takeovers.count(TEO, "run", second)
    for number in range(doorway.KNOWN):
        takeovers.count(str(number), "run", 1.0)
    assert not takeovers.count(TEO, "run", 1.0)


def test_others_are_not_counted() -> None:
    takeovers = Takeovers()
    for second in range(doorway.TAKEOVERS):
        takeovers.count(TEO, "run", second)
    assert not takeovers.count(NOOR, "run", 1.0)
    assert not takeovers.count(TEO, "other run", 1.0)
