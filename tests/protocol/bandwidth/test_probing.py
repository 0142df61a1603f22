"""A probe's frames count only if they are expected, come from the right sender, and arrive after the probe has
begun."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.probing import (
    EXPECTED_S,
    LAST,
    LEAD_S,
    LEAST_S,
    MOST_OPEN,
    Probes,
    expect,
    frame_came,
    is_expected,
)
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.wire import HEADER, Frame, Kind
from tests.protocol.identities import RUN

ANN, BOB = PeerId("a" * 32), PeerId("b" * 32)
PAYLOAD = 1000 - HEADER.size


def frame(number: int = 7, slot: int = 0) -> Frame:
    return Frame(Kind.PROBE, RUN, number, 0, 0, 0, 0, slot, bytes(0 if slot else PAYLOAD))


def expecting(*numbers: int, now: float = 100.0) -> Probes:
    probes = Probes()
    for number in numbers or (7,):
        expect(probes, m.Probe(run=RUN, number=number, partner=ANN, begins=True), now)
    return probes


def test_what_comes_after_the_beginning_is_measured() -> None:
    probes, now = expecting(), 100.5
    for _ in range(12):
        assert frame_came(probes, ANN, frame(), now) is None
        now += 0.1
    came = frame_came(probes, ANN, frame(slot=LAST), now)
    assert came is not None
    size, seconds = came
    assert seconds == pytest.approx(1.2 - LEAD_S)
    assert size / seconds == pytest.approx(10_000, rel=0.15), "a thousand bytes each tenth of a second"
    assert not probes.open, "it is told once"


@pytest.mark.parametrize("held_back", [range(3, 6), range(8, 11)])
def test_probe_backlog_of_a_busy_machine_makes_no_link_faster(held_back: range) -> None:
    """The machine reads the backlog all at once, just before or during its peer's half of the probe."""
    probes, waiting = expecting(), 0
    for tenth in range(17):
        waiting += 1
        if tenth not in held_back:
            for _ in range(waiting):
                frame_came(probes, ANN, frame(), 100.0 + 0.1 * tenth)
            waiting = 0
    came = frame_came(probes, ANN, frame(slot=LAST), 101.6)
    assert came is not None
    assert came[0] / came[1] <= 11_000, "a thousand bytes each tenth of a second"


def test_one_that_was_too_short_shows_nothing() -> None:
    probes = expecting()
    frame_came(probes, ANN, frame(), 100.0)
    assert frame_came(probes, ANN, frame(slot=LAST), 100.0 + LEAD_S + LEAST_S / 2) is None
    assert not probes.open


def test_nobody_else_and_nothing_else_counts() -> None:
    probes = expecting()
    assert not is_expected(probes, BOB, 7, 100.0)
    assert not is_expected(probes, ANN, 8, 100.0)
    assert not is_expected(probes, ANN, 7, 100.0 + EXPECTED_S)
    for partner, number in ((BOB, 7), (ANN, 8)):
        assert frame_came(probes, partner, frame(number, LAST), 103.0) is None
    assert probes.open[7].size == 0


def test_only_so_many_are_expected_at_once() -> None:
    probes = expecting(*range(MOST_OPEN + 2))
    assert set(probes.open) == set(range(MOST_OPEN))
    expect(probes, m.Probe(run=RUN, number=99, partner=ANN, begins=False), 100.0 + EXPECTED_S)
    assert set(probes.open) == {99}, "those before are over"
