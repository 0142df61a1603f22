"""Learning link rates from the flows of rounds. Estimates converge quickly, and stay right when a peer sends little."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peer_agent.protocol.bandwidth import learning
from peer_agent.protocol.bandwidth.flows import FASTEST_BPS, MOST_RISE, Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import budget_bps, unknown
from peer_agent.protocol.identifiers import PeerId
from tests.protocol.bandwidth.fluid import Pair, flows_over

MBPS = 125_000.0
VECTOR = 20_000_000


def learn(known: dict[Direction, Capacity], flows: Sequence[Flow], at: float, hoped_s: float = 0.0) -> None:
    pairs: dict[Pair, Capacity] = {}
    learning.learn(known, pairs, flows, at, hoped_s)
    assert not pairs


def peer(name: str) -> PeerId:
    return PeerId(name)


def links(**mbps: tuple[float, float]) -> dict[Direction, float]:
    made: dict[Direction, float] = {}
    for name, (up, down) in mbps.items():
        made[peer(name), "up"], made[peer(name), "down"] = up * MBPS, down * MBPS
    return made


def believed(true: dict[Direction, float], **factors: float) -> dict[Direction, Capacity]:
    """Return estimates of the links. A factor called `NAME` scales that peer's uplink, and `down_NAME` its downlink."""
    known = {direction: Capacity(bps, is_floor=False, measured_at=0) for direction, bps in true.items()}
    for name, factor in factors.items():
        way, _, of = name.rpartition("_")
        known[peer(of), "down" if way == "down" else "up"].bps *= factor
    return known


def up_to(reducer: str, senders: Sequence[str], size: int = VECTOR) -> dict[Pair, int]:
    return {(peer(sender), peer(reducer)): size for sender in senders}


def rounds(known: dict[Direction, Capacity], true: dict[Direction, float], wanted: dict[Pair, int], count: int) -> None:
    for number in range(count):
        learn(known, flows_over(true, wanted), number)


def mbps(known: dict[Direction, Capacity], name: str, way: str = "up") -> float:
    return known[peer(name), way].bps / MBPS  # type: ignore[index]


def test_overestimated_uplink_is_corrected_in_three_rounds() -> None:
    true = links(a=(20, 100), b=(100, 100), c=(100, 100), relay=(1000, 1000))
    known = believed(true, a=3)
    rounds(known, true, up_to("relay", "abc"), 3)
    assert mbps(known, "a") == pytest.approx(20, rel=0.3)
    rounds(known, true, up_to("relay", "abc"), 2)
    assert mbps(known, "a") == pytest.approx(20, rel=0.15)
    assert mbps(known, "b") == pytest.approx(100, rel=0.01)


def test_an_uplink_that_was_thought_slower_is_raised_at_once() -> None:
    true = links(a=(60, 100), b=(60, 100), relay=(1000, 1000))
    known = believed(true, a=0.5)
    rounds(known, true, up_to("relay", "ab"), 1)
    assert mbps(known, "a") == pytest.approx(60)


def test_whoever_is_asked_for_little_keeps_what_is_known() -> None:
    """A 300 Mb/s peer that sends only 5 Mb/s looks like a 5 Mb/s peer, but has a higher capacity (rule 31)."""
    true = links(fast=(300, 300), slow=(5, 30), relay=(1000, 1000))
    known = believed(true)
    paced = [
        Flow(peer("fast"), peer("relay"), VECTOR, 0.0, 32.0),
        Flow(peer("slow"), peer("relay"), VECTOR, 0.0, 32.0),
    ]
    for number in range(20):
        learn(known, [paced[0], *up_and_down(paced[1])], number)
    assert mbps(known, "slow") == pytest.approx(5, rel=0.01)
    assert mbps(known, "relay", "down") == 1000


def up_and_down(flow: Flow) -> list[Flow]:
    return [flow]


def test_relay_that_slowed_all_is_found_rather_than_its_senders() -> None:
    true = links(a=(100, 100), b=(100, 100), c=(100, 100), d=(100, 100), relay=(1000, 200))
    known = believed(true, down_relay=2)
    rounds(known, true, up_to("relay", "abcd"), 5)
    assert mbps(known, "relay", "down") == pytest.approx(200, rel=0.15)
    for name in "abcd":
        assert mbps(known, name) == 100


def crowded(senders: int, took_s: float) -> list[Flow]:
    """Return the flows of senders whose bytes mostly reach the auxiliary late. The rest reach another trainer on
    time."""
    names = [f"t{number}" for number in range(senders)]
    to_all = [paced(name, "auxiliary", took_s, 10.0) for name in names]
    shared = zip(names, [*names[1:], names[0]], strict=True)
    return to_all + [
        replace(paced(one, other, took_s, 0.0, VECTOR // 4), full_s=0.0, in_step=True) for one, other in shared
    ]


def test_auxiliary_is_not_slower_for_nearly_full_senders() -> None:
    """Each trainer's link is nearly full (16 of 20 Mb/s). The auxiliary's is not (205 of 300), so it did not limit any
    sender.
    """
    true = links(auxiliary=(300, 300), **{f"t{number}": (20.0, 20.0) for number in range(16)})
    known = believed(true)
    learn(known, crowded(16, 12.5), 0)
    assert mbps(known, "auxiliary", "down") == 300
    assert mbps(known, "t0") == 20


def test_an_auxiliary_that_is_fuller_than_its_senders_is_slower() -> None:
    true = links(auxiliary=(270, 270), **{f"t{number}": (24.0, 24.0) for number in range(16)})
    known = believed(true)
    learn(known, crowded(16, 11.7), 0)  # 17 of 24 Mb/s, 219 of 270 Mb/s
    assert mbps(known, "auxiliary", "down") < 240
    assert mbps(known, "t0") == 24


def test_an_auxiliary_that_became_slower_is_found() -> None:
    true = links(auxiliary=(300, 300), **{f"t{number}": (20.0, 20.0) for number in range(16)})
    known = believed(true)
    learn(known, crowded(16, 17.0), 0)
    assert mbps(known, "auxiliary", "down") == pytest.approx(150 + 0.3 * 150, rel=0.02)
    assert mbps(known, "t0") == 20


def test_slow_uplink_is_found_rather_than_its_reducers() -> None:
    true = links(a=(10, 100), b=(100, 100), r=(1000, 1000), s=(1000, 1000), t=(1000, 1000))
    known = believed(true, a=4)
    wanted = up_to("r", "ab") | up_to("s", "ab") | up_to("t", "ab")
    rounds(known, true, wanted, 5)
    assert mbps(known, "a") == pytest.approx(10, rel=0.15)
    assert {name: mbps(known, name, "down") for name in "rst"} == dict.fromkeys("rst", 1000)


def test_what_nobody_measured_is_a_floor_until_something_is_full() -> None:
    true = links(a=(40, 100), relay=(1000, 1000))
    known: dict[Direction, Capacity] = {}
    rounds(known, true, up_to("relay", "a"), 1)
    assert known[peer("a"), "up"].is_floor
    assert known[peer("relay"), "down"].is_floor
    rounds(known, true, up_to("relay", "a") | {(peer("b"), peer("relay")): VECTOR}, 0)
    assert unknown(known, [peer("a"), peer("relay")]) == [peer("a"), peer("relay")]


def test_receiver_lying_about_seconds_moves_an_estimate_little() -> None:
    true = links(a=(10, 10), relay=(100, 100))
    known = believed(true)
    learn(known, [Flow(peer("a"), peer("relay"), VECTOR, 0.0, 1e-9)], 1)
    assert mbps(known, "a") <= 10 * MOST_RISE
    for number in range(100):
        learn(known, [Flow(peer("a"), peer("relay"), 2**53, 0.0, 0.0)], number)
    assert known[peer("a"), "up"].bps <= FASTEST_BPS


def test_a_direction_that_idled_at_the_end_is_not_lowered() -> None:
    """Most bytes in this direction were sent early. Another peer held up its last flow."""
    known = believed(links(a=(100, 100), r=(1000, 1000), s=(10, 10)))
    flows = [
        Flow(peer("a"), peer("r"), 9 * VECTOR, 0.0, 15.0),
        Flow(peer("a"), peer("s"), VECTOR, 0.0, 160.0),
        Flow(peer("b"), peer("s"), VECTOR, 0.0, 160.0),
    ]
    learn(known, flows, 1)
    assert mbps(known, "a") == 100


def test_a_budget_leaves_the_household_its_part() -> None:
    known = {(peer("a"), "up"): Capacity(100.0, is_floor=False, measured_at=0)}
    assert budget_bps(known, (peer("a"), "up"), 0.2) == pytest.approx(80)  # type: ignore[arg-type]
    assert budget_bps(known, (peer("a"), "down"), 0.2) == 0  # type: ignore[arg-type]


def averages(took_s: float) -> list[Flow]:
    """Return the averages from two relays to homes `a` and `b`. Sending takes `took_s` to `a`, and two seconds to
    `b`."""
    of = [(relay, home, 2.0 if home == "b" else took_s) for relay in ("r", "s") for home in ("a", "b")]
    return [Flow(peer(relay), peer(home), VECTOR // 10, 0.0, seconds, 2.0) for relay, home, seconds in of]


def test_receiver_of_averages_is_slower_after_two_late_rounds() -> None:
    """The receiver may have been busy only briefly. If its estimate fell at once, no later plan could show that the
    link is faster.
    """
    known = believed(links(a=(17, 300), b=(17, 300), r=(1000, 1000), s=(1000, 1000)))
    for number, took_s in enumerate([2.0, 8.0, 2.0, 8.0, 2.0]):
        learn(known, averages(took_s), number)
        assert mbps(known, "a", "down") == 300
    for number in (5, 6):
        learn(known, averages(8.0), number)
    assert mbps(known, "a", "down") < 100
    assert mbps(known, "b", "down") == 300
    assert mbps(known, "r") == 1000


def test_who_reduces_is_slower_at_once() -> None:
    """A reducer's estimate may fall at once, since later plans send it enough to reveal a faster link."""
    known = believed(links(a=(100, 100), b=(100, 100), r=(1000, 1000)))
    learn(known, [*averages(8.0)[:1], paced("b", "a", 8.0, 2.0, VECTOR // 10)], 1)
    assert mbps(known, "a", "down") < 50


# --- the planned time of a flow


def paced(sender: str, receiver: str, seconds: float, asked_s: float, size: int = VECTOR) -> Flow:
    return Flow(peer(sender), peer(receiver), size, 0.0, seconds, asked_s, in_step=True)


def test_what_came_as_asked_lowers_nothing_and_is_no_measure() -> None:
    known = {direction: Capacity(100 * MBPS, is_floor=True, measured_at=0) for direction in links(a=(1, 1), r=(1, 1))}
    for number in range(20):
        learn(known, [paced("a", "r", 1.7, 1.6)], number)  # 94 Mb/s
    assert mbps(known, "a") == mbps(known, "r", "down") == 100
    assert known[peer("a"), "up"].is_floor
    assert not known[peer("a"), "up"].is_tried


def test_late_flow_is_tried_and_measured_at_the_end_without_room() -> None:
    known: dict[Direction, Capacity] = {
        (peer("a"), "up"): Capacity(10 * MBPS, is_floor=True, measured_at=0),
        (peer("r"), "down"): Capacity(100 * MBPS, is_floor=True, measured_at=0),
    }
    learn(known, [paced("a", "r", 16.5, 12.8)], 1)
    assert mbps(known, "a") == pytest.approx(9.8, rel=0.01)
    assert (known[peer("a"), "up"].is_tried, known[peer("a"), "up"].is_floor) == (True, False)
    assert (known[peer("r"), "down"].is_tried, known[peer("r"), "down"].is_floor) == (False, True)


def test_late_flow_blames_neither_end_if_both_carried_all_known() -> None:
    known = {direction: Capacity(10 * MBPS, is_floor=True, measured_at=0) for direction in links(a=(1, 1), r=(1, 1))}
    for number in range(5):
        learn(known, [paced("a", "r", 16.3, 12.8)], number)
    assert known[peer("a"), "up"].is_floor
    assert known[peer("r"), "down"].is_floor
    assert known[peer("a"), "up"].is_tried, "but more was asked, and did not come"


def test_what_carried_more_after_all_is_to_be_tried_anew() -> None:
    known = {direction: Capacity(10 * MBPS, True, 0, is_tried=True) for direction in links(a=(1, 1), r=(1, 1))}
    learn(known, [paced("a", "r", 14.5, 14.5)], 1)
    assert mbps(known, "a") == pytest.approx(11, rel=0.01)
    assert known[peer("a"), "up"].is_tried, "so little more is the same link"
    learn(known, [paced("a", "r", 11.5, 11.5)], 2)
    assert mbps(known, "a") == pytest.approx(13.9, rel=0.01)
    assert not known[peer("a"), "up"].is_tried


def test_without_a_pace_nothing_is_called_tried_or_measured() -> None:
    known = {direction: Capacity(10 * MBPS, is_floor=True, measured_at=0) for direction in links(a=(1, 1), r=(1, 1))}
    known[peer("r"), "down"].bps *= 10
    learn(known, [paced("a", "r", 16.3, 0.0)], 1)
    assert (known[peer("a"), "up"].is_tried, known[peer("a"), "up"].is_floor) == (False, True)


def test_what_took_a_moment_shows_nothing() -> None:
    known = believed(links(a=(100, 100), r=(100, 100)))
    learn(known, [paced("a", "r", 0.24, 0.0, VECTOR // 100)], 1)
    assert mbps(known, "a") == mbps(known, "r", "down") == 100


def test_sender_in_step_with_a_full_receiver_is_not_thought_slow() -> None:
    """A contributor sends its chunks to all reducers in step, so the slowest reducer sets the pace for all of them."""
    true = links(a=(200, 200), r=(200, 200), s=(10, 10))
    known = believed(true)
    flows = [paced("a", "r", 16.0, 2.0, 8 * VECTOR // 10), paced("a", "s", 16.0, 2.0)]
    for number in range(5):
        learn(known, flows, number)
    assert mbps(known, "a") == 200
    assert mbps(known, "r", "down") == 200
    learn(known, [paced("a", "r", 16.0, 2.0, 8 * VECTOR // 10), paced("a", "s", 16.0, 16.0)], 9)
    assert mbps(known, "a") < 200 or mbps(known, "r", "down") < 200, "of the second as much came as was asked"


def test_full_receiver_with_a_single_flow_is_measured() -> None:
    known = believed(links(a=(100, 100), s=(10, 10)))
    known[peer("s"), "down"].bps = 12 * MBPS
    for number in range(4):
        learn(known, [paced("a", "s", 16.0, 2.0)], number)  # 10 Mb/s
    assert mbps(known, "s", "down") == pytest.approx(10, rel=0.02)


def test_full_sender_is_measured_beside_a_full_receiver() -> None:
    known = believed(links(a=(20, 100), r=(100, 100), s=(100, 10)))
    flows = [paced("a", "r", 16.0, 2.0), paced("a", "s", 16.0, 2.0)]  # each flow arrives at 10 of 20 Mb/s
    known[peer("a"), "up"].bps = 22 * MBPS
    for number in range(4):
        learn(known, flows, number)
    assert mbps(known, "a") == pytest.approx(20, rel=0.02)


def relay_in_step(took_s: float, asked_s: float) -> list[Flow]:
    """Return the flows of four trainers' gradients to a 100 Mb/s relay. Each flow keeps step with its sender's other
    flows.
    """
    return [
        Flow(peer(name), peer("relay"), VECTOR, 0.0, took_s, asked_s, in_step=True, full_s=0.1 * took_s)
        for name in "abcd"
    ]


@pytest.mark.parametrize(
    ("known_mbps", "took_s", "hoped_s", "is_tried"),
    [
        (100.0, 6.4, 3.2, True),  # 100 of 100 Mb/s, while the plan hoped for 200
        (100.0, 12.7, 3.2, True),  # 50 Mb/s: whichever link was slower, shares must not assume 200 for ever
        (100.0, 12.9, 3.2, False),  # even less: all waited for another peer
        (100.0, 3.5, 3.2, False),  # on time
        (100.0, 6.4, 6.5, False),  # the plan hoped for no more than the known rate
        (100.0, 6.4, 0.0, False),  # the plan hoped for nothing
        (80.0, 6.4, 3.2, False),  # 100 Mb/s: more than known, so there may be still more
    ],
)
@pytest.mark.parametrize("asked_s", [0.0, 1.6, 20.0])
def test_unmet_hope_counts_as_tried_even_with_no_flow_held_up(
    known_mbps: float, took_s: float, hoped_s: float, is_tried: bool, asked_s: float
) -> None:
    """If senders keep step, no flow counts as held up. Without this rule, plans would assume twice the true rate
    forever.
    """
    known: dict[Direction, Capacity] = {
        (peer("relay"), "down"): Capacity(known_mbps * MBPS, is_floor=True, measured_at=0)
    }
    known |= {(peer(name), "up"): Capacity(500 * MBPS, is_floor=False, measured_at=0) for name in "abcd"}
    learn(known, relay_in_step(took_s, asked_s), 1, hoped_s)
    assert known[peer("relay"), "down"].is_tried is is_tried
    assert known[peer("relay"), "down"].is_floor, "nothing shows whose fault it was"
    assert not known[peer("a"), "up"].is_tried


def test_averages_that_came_after_all_gradients_hide_nothing() -> None:
    """A sender at full speed finishes long before the averages of the other senders' last chunks arrive."""
    known: dict[Direction, Capacity] = {(peer("relay"), "down"): Capacity(100 * MBPS, is_floor=True, measured_at=0)}
    *early, last = relay_in_step(6.4, 1.6)
    learn(known, [*(replace(flow, last_s=2.0) for flow in early), last], 1, 3.2)
    assert known[peer("relay"), "down"].is_tried


def test_what_was_tried_and_carries_more_later_is_tried_anew() -> None:
    known: dict[Direction, Capacity] = {(peer("relay"), "down"): Capacity(100 * MBPS, is_floor=True, measured_at=0)}
    learn(known, relay_in_step(6.4, 1.6), 1, 3.2)
    learn(known, relay_in_step(6.0, 5.2), 2)
    assert known[peer("relay"), "down"].is_tried, "a bit more"
    learn(known, relay_in_step(4.5, 4.0), 3)
    assert not known[peer("relay"), "down"].is_tried
    assert mbps(known, "relay", "down") == pytest.approx(142, rel=0.01)
