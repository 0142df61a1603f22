"""The flows of a measured round over links of 200, 200, 50 and 20 Mb/s. One reducer's uplink had slowed to a tenth."""

import pytest
from msgspec.structs import replace

from peer_agent.protocol.bandwidth.flows import Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import learn
from peer_agent.protocol.identifiers import PeerId

BEFORE = {"a": (23.8, 23.5), "b": (23.5, 23.8), "c": (5.81, 5.94), "d": (2.45, 2.44)}  # MB/s up and down
NOW_MB = 2.6  # the uplink now carries 2.5 MB/s, plus what the shaper lets through at once
# sender, receiver, bytes, first, last, planned seconds; then the seconds in which the sender's link was full
GRADIENTS = [
    ("a", "c", 1345, 0.46, 8.09, 4.88, 0.0),
    ("b", "c", 1848, 0.36, 8.48, 6.79, -4.48),
    ("d", "c", 1848, 0.45, 8.48, 6.79, -2.1),
    ("a", "b", 5610, 0.10, 7.89, 4.19, 8.47),
    ("c", "b", 9088, 0.11, 8.54, 6.79, -4.24),
    ("d", "b", 9088, 0.16, 8.54, 6.79, -7.78),
    ("b", "a", 9088, 0.04, 9.36, 6.79, -8.83),
    ("c", "a", 9088, 0.02, 9.36, 6.79, -6.96),
    ("d", "a", 9088, 0.11, 9.76, 6.79, 8.33),
]
AVERAGES = [
    ("b", "a", 9088, 0.19, 8.98, 8.38),
    ("c", "a", 1848, 0.56, 8.83, 8.02),
    ("a", "b", 9088, 0.26, 13.11, 9.66),
    ("c", "b", 1848, 0.47, 8.59, 8.02),
    ("a", "c", 9088, 0.28, 13.30, 9.66),
    ("b", "c", 9088, 0.26, 9.00, 8.38),
    ("a", "d", 9088, 0.23, 19.08, 9.66),
    ("b", "d", 9088, 0.24, 9.95, 8.38),
    ("c", "d", 1848, 0.56, 8.76, 8.02),
]


def flows() -> list[Flow]:
    made = [
        Flow(PeerId(sender), PeerId(receiver), kb * 1000, first, last, asked, True, full)
        for sender, receiver, kb, first, last, asked, full in GRADIENTS
    ]
    return made + [
        Flow(PeerId(sender), PeerId(receiver), kb * 1000, first, last, asked)
        for sender, receiver, kb, first, last, asked in AVERAGES
    ]


def known() -> dict[Direction, Capacity]:
    made: dict[Direction, Capacity] = {}
    for name, (up, down) in BEFORE.items():
        made[PeerId(name), "up"] = Capacity(up * 1e6, is_floor=name != "d", measured_at=0, is_tried=name == "d")
        made[PeerId(name), "down"] = Capacity(down * 1e6, is_floor=True, measured_at=0, is_tried=name == "d")
    return made


def test_uplink_is_learned_though_averages_end_one_by_one() -> None:
    capacities = known()
    learn(capacities, {}, flows(), 1)
    up = capacities[PeerId("a"), "up"]
    assert not up.is_floor
    assert up.bps / 1e6 == pytest.approx(23.8 - 0.7 * (23.8 - NOW_MB), rel=0.02)


def test_nobody_else_is_slower_for_it() -> None:
    capacities = known()
    learn(capacities, {}, flows(), 1)
    others = {direction: each.bps for direction, each in capacities.items() if direction != (PeerId("a"), "up")}
    assert others == pytest.approx({d: each.bps for d, each in known().items() if d in others}, rel=0.1)


def test_uplink_that_briefly_beat_its_estimate_stays_a_floor() -> None:
    """One flow was late only by the hoped-for rate. The other was held up by the slow receiver."""
    a, fast, slow = (PeerId(name) for name in ("a", "fast", "slow"))
    capacities: dict[Direction, Capacity] = {(a, "up"): Capacity(100e6, is_floor=True, measured_at=0)}
    for receiver in (fast, slow):
        capacities[receiver, "down"] = Capacity(1e9, is_floor=True, measured_at=0)
    gone = [Flow(a, fast, 60_000_000, 0.0, 0.5, 0.3), Flow(a, slow, 40_000_000, 0.0, 2.0, 0.3)]
    learn(capacities, {}, [replace(flow, in_step=True, full_s=flow.last_s) for flow in gone], 1)
    assert capacities[a, "up"].is_floor


def test_who_held_up_a_small_part_of_what_it_sent_is_no_limit() -> None:
    a, fast, slow = (PeerId(name) for name in ("a", "fast", "slow"))
    directions: list[Direction] = [(a, "up"), (fast, "down"), (slow, "down")]
    capacities = {direction: Capacity(12.5e6, is_floor=True, measured_at=0) for direction in directions}
    flows_of = ((fast, 160_000_000, 15.0, 0.0), (slow, 20_000_000, 60.0, 60.0))
    gone = [Flow(a, to, size, 0.0, took_s, 15.0, True, full_s) for to, size, took_s, full_s in flows_of]
    learn(capacities, {}, gone, 1)
    assert capacities[a, "up"].is_floor
    assert capacities[a, "up"].bps == 12.5e6
