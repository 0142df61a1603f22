"""Bytes counted by sender, with the first and last arrivals in seconds since the plan."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.counting import Arrived, arrivals_of, count
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER

ANN, BOB = PeerId("0a" * 16), PeerId("0b" * 16)


def test_what_came_is_told_by_sender_with_its_headers() -> None:
    arrived: dict[PeerId, Arrived] = {}
    for sender, size, now in ((BOB, 100, 11.0), (ANN, 10, 11.5), (BOB, 50, 12.0), (BOB, 1, 14.0)):
        count(arrived, sender, size, now)
    assert arrivals_of(arrived, 10.0) == (
        m.Arrival(ANN, 10 + HEADER.size, 1.5, 1.5),
        m.Arrival(BOB, 151 + 3 * HEADER.size, 1.0, 4.0),
    )


def test_what_came_before_its_plan_came_with_it() -> None:
    arrived: dict[PeerId, Arrived] = {}
    count(arrived, ANN, 10, 9.0)
    assert arrivals_of(arrived, 10.0) == (m.Arrival(ANN, 10 + HEADER.size, 0.0, 0.0),)
