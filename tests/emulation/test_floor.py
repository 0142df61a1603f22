"""Floor times known from papers and measurements, in units of one fp32 vector over 1 Gb/s unless stated otherwise."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.emulation import setups
from tests.emulation.floor import floor_s
from tests.emulation.setups import Peer, Setup
from tests.test_house import ROOT

UNSCALED = {name: setups.setup(name, scale=1.0) for name in setups.SETUPS}


def units(setup: Setup) -> float:
    """Return a set-up's floor time in fp32, in units of one vector over 1 Gb/s."""
    size = 4 * setup.elements
    return floor_s(setup, setup.nominal(), size, size) / (size / (1000 * setups.MBIT))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("A", 1.75),  # 2 (n - 1) / n
        ("B", 9.375),
        ("C", 5.0),
        ("D", 5.568),
        ("albert", 20.0),  # the slowest peer sends its own vector once
        ("albert-auxiliaries", 20.0),
        ("four", 50.0),
        ("homes", 200.0),
        ("homes-rtt", 200.0),
    ],
)
def test_the_floors_of_the_papers(name: str, known: float) -> None:
    assert units(UNSCALED[name]) == pytest.approx(known, abs=5e-4)


def test_four_peers_take_sixteen_seconds_for_ten_million_values() -> None:
    four = setups.setup("four")
    assert floor_s(four, four.nominal(), 40_000_000, 40_000_000) == pytest.approx(16.0)


def test_regions_pay_for_a_relay_that_keeps_the_log() -> None:
    """Computed by hand: a pair allows x_i + x_j <= T / 20, so each of the eight peers has a share of T / 40, and the
    relay has 1 - T / 5.
    """
    relay_keeps = UNSCALED["regions"]
    assert units(replace(relay_keeps, keeper="east-1")) == pytest.approx(20 / 9)
    # The relay receives 8 x of gradients and 1 - x of averages over 2 Gb/s: x = (2 T - 1) / 7.
    assert units(relay_keeps) == pytest.approx(40 / 17)


@pytest.mark.parametrize(("name", "known"), [("A", 1.875), ("B", 9.6875)])
def test_a_keeper_beside_the_contributors_is_one_more_receiver(name: str, known: float) -> None:
    alone = UNSCALED[name]
    keeper = Peer("keeper", "relay", 1000, 1000, reachable=False)
    assert units(replace(alone, peers=(*alone.peers, keeper), keeper="keeper")) == pytest.approx(known)


def test_up_and_down_are_limits_of_their_own() -> None:
    """A relay reduces everything. The round is limited first by one peer's slow uplink, then by the other's slow
    downlink.
    """
    one = Peer("one", "trainer", up_mbit=8, down_mbit=1000, reachable=False)
    two = Peer("two", "trainer", up_mbit=1000, down_mbit=4, reachable=False)
    relayed = Setup("relayed", (one, two, Peer("relay", "relay", 1000, 1000)), 1, "relay", 1.0)
    assert floor_s(relayed, relayed.nominal(), 4_000_000, 1_000_000) == pytest.approx(4.0)
    assert floor_s(relayed, relayed.nominal(), 1_000_000, 4_000_000) == pytest.approx(8.0)


def test_every_contributor_may_have_a_codec_of_its_own() -> None:
    four = UNSCALED["four"]
    full, half = 40_000_000, 20_000_000
    mixed = {"trainer-1": full, "trainer-2": full, "trainer-3": full, "trainer-4": half}
    # The peers with 20 Mb/s still receive the whole average. Once that is halved too, half of their uplink time is the
    # floor.
    assert floor_s(four, four.nominal(), mixed, full) == pytest.approx(16.0)
    assert floor_s(four, four.nominal(), mixed, half) == pytest.approx(8.0)


def test_who_is_left_out_neither_sends_nor_is_waited_for() -> None:
    four, full = UNSCALED["four"], 40_000_000
    three = {"trainer-1": full, "trainer-2": full, "trainer-3": full}
    assert floor_s(four, four.nominal(), three, full) == pytest.approx(6.4), "50 Mb/s"


def test_a_floor_on_slower_links_is_longer_in_proportion() -> None:
    slow = setups.setup("D", scale=0.1)
    assert units(slow) == pytest.approx(10 * units(UNSCALED["D"]))


def test_nobody_to_dial_is_an_error() -> None:
    hidden = Setup("hidden", setups.peers("home", (2, 1, 1), reachable=False), 1, "home-1", 1.0)
    with pytest.raises(RuntimeError, match="hidden"):
        floor_s(hidden, hidden.nominal(), 1, 1)


def test_the_floor_never_asks_the_plan() -> None:
    code = "import sys, tests.emulation.floor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "tests.emulation.floor" in done.stdout.split()
    assert [name for name in done.stdout.split() if name.startswith("peer_agent")] == []
