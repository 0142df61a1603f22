"""The set-ups match their description, peer by peer, and a scale multiplies only the rates."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.emulation import setups
from tests.emulation.setups import Peer, Setup

LINKS = {
    "A": {("trainer", 1000, 1000): 8},
    "B": {("trainer", 200, 200): 16},
    "C": {("trainer", 1000, 1000): 8, ("trainer", 200, 200): 16},
    "D": {("trainer", 200, 200): 16, ("auxiliary", 2500, 2500): 1},
    "albert": {("trainer", 200, 200): 4, ("trainer", 100, 100): 8, ("trainer", 50, 50): 4},
    "albert-auxiliaries": {
        ("trainer", 200, 200): 4,
        ("trainer", 100, 100): 8,
        ("trainer", 50, 50): 4,
        ("auxiliary", 500, 500): 4,
    },
    "homes": {
        ("trainer", 17, 300): 6,
        ("trainer", 300, 300): 5,
        ("trainer", 5, 30): 2,
        ("trainer", 15, 150): 3,
        ("relay", 1000, 1000): 2,
    },
    "homes-rtt": {
        ("trainer", 17, 30): 6,
        ("trainer", 30, 30): 5,
        ("trainer", 5, 30): 2,
        ("trainer", 15, 30): 3,
        ("relay", 1000, 1000): 2,
    },
    "regions": {("trainer", 1000, 1000): 8, ("relay", 2000, 2000): 1},
    "four": {("trainer", 200, 200): 2, ("trainer", 50, 50): 1, ("trainer", 20, 20): 1},
}


@pytest.mark.parametrize("name", setups.SETUPS)
def test_the_links_of_a_setup(name: str) -> None:
    peers = setups.setup(name, scale=1.0).peers
    assert Counter((peer.role, peer.up_mbit, peer.down_mbit) for peer in peers) == LINKS[name]


@pytest.mark.parametrize(
    ("name", "scale"),
    [("A", 0.05), ("B", 0.1), ("C", 0.05), ("D", 0.1), ("regions", 0.1), ("albert", 0.4), ("homes", 1), ("four", 1)],
)
def test_the_scale_that_two_cores_carry(name: str, scale: float) -> None:
    given, whole = setups.setup(name), setups.setup(name, scale=1.0)
    assert given.scale == scale
    assert given.elements == whole.elements
    for rates in ("up", "down", "pairs"):
        expected = {key: value * scale for key, value in getattr(whole.nominal(), rates).items()}
        assert getattr(given.nominal(), rates) == pytest.approx(expected)


@pytest.mark.parametrize("name", setups.SETUPS)
def test_only_homes_hide_and_only_there_a_relay_keeps_the_log(name: str) -> None:
    made = setups.setup(name)
    hidden = {peer.role for peer in made.peers if not peer.reachable}
    keeper = next(peer for peer in made.peers if peer.name == made.keeper)
    assert hidden == ({"trainer"} if name.startswith("homes") else set())
    assert keeper.reachable
    assert (keeper.role == "relay") == (name in {"homes", "homes-rtt", "regions"})


def test_pairs_between_regions_are_limited_but_relays_are_not() -> None:
    pairs = setups.setup("regions", scale=1.0).nominal().pairs
    assert len(pairs) == 32
    assert set(pairs.values()) == {50 * setups.MBIT}
    assert pairs.keys() >= {("east-1", "west-4"), ("west-4", "east-1")}
    assert not any("relay-1" in pair for pair in pairs)


def test_a_relay_has_no_delay() -> None:
    made = setups.setup("homes-rtt")
    assert {peer.role for peer in made.peers if made.delays(peer)} == {"trainer"}
    assert not any(setups.setup("homes").delays(peer) for peer in made.peers)


ONE = Peer("one", "trainer", 1, 1)


@pytest.mark.parametrize(
    ("peers", "facts"),
    [
        ((), {}),
        ((ONE, ONE), {}),
        ((replace(ONE, name="two"),), {}),  # the keeper of the log, "one", does not exist
        ((replace(ONE, up_mbit=0),), {}),
        ((replace(ONE, down_mbit=51),), {"round_trip_s": 0.1}),
        (tuple(replace(ONE, name=str(index)) for index in range(201)), {}),
    ],
)
def test_what_cannot_be_emulated_is_refused(peers: tuple[Peer, ...], facts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="wrong"):
        Setup("wrong", peers, 1, peers[0].name if len(peers) == 201 else "one", 1.0, **facts)
