"""Limits between two peers: found in the rounds that they hold up, told apart from full links, and forgotten in
time."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from peer_agent.protocol.bandwidth.flows import SHORTEST_S, WAYS, Capacity, Direction, Flow
from peer_agent.protocol.bandwidth.learning import learn
from peer_agent.protocol.bandwidth.pairs import HOPE, MOST_PAIRS, ROUNDS_KEPT, learn_pairs, limits_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Limits, Pair, Party, judged, solve
from tests.protocol.bandwidth.fluid import flows_over

HERE, THERE = [PeerId(f"a{n}") for n in range(4)], [PeerId(f"b{n}") for n in range(4)]
RELAY = PeerId("relay")
EVERYBODY = (*HERE, *THERE, RELAY)
VECTOR = 5_000_000
LINK, FAR, FAT = 12_500_000.0, 625_000.0, 25_000_000.0  # bytes per second
PACE = 1.25


def true_links() -> dict[Direction, float]:
    """Return the links of the set-up `regions`: the trainers' are equal, and the relay's is twice as fast."""
    return {(peer, way): FAT if peer == RELAY else LINK for peer in EVERYBODY for way in ("up", "down")}


def far_pairs() -> dict[Pair, float]:
    return {pair: FAR for here in HERE for there in THERE for pair in ((here, there), (there, here))}


def believed(true: Mapping[Direction, float]) -> dict[Direction, Capacity]:
    return {direction: Capacity(bps, is_floor=False, measured_at=0) for direction, bps in true.items()}


def parties() -> list[Party]:
    trainers = [
        Party(
            peer=peer,
            up_bytes=VECTOR,
            receives=True,
            may_reduce=True,
            is_volunteer=True,
            upload_bps=LINK,
            download_bps=LINK,
        )
        for peer in (*HERE, *THERE)
    ]
    return [*trainers, Party(peer=RELAY, may_reduce=True, upload_bps=FAT, download_bps=FAT)]


def a_round(pairs: Mapping[Pair, Capacity], between: Mapping[Pair, float]) -> tuple[float, list[Flow]]:
    """Plan with the known rates and send over the true links. Return the seconds taken and the flows as reported.

    A contributor sends its gradients in step, so its fast pairs wait for its slowest one.
    """
    plan = solve(parties(), VECTOR, Limits(limits_of(pairs, hopes=True)))
    plan = judged(plan, parties(), VECTOR, Limits(limits_of(pairs)))
    shares = dict(zip(plan.reducers, plan.shares, strict=True))
    gradient = {
        (sender, reducer): int(VECTOR * share)
        for sender in (*HERE, *THERE)
        for reducer, share in shares.items()
        if sender != reducer and int(VECTOR * share)
    }
    average = {(reducer, sender): size for (sender, reducer), size in gradient.items()}
    average = {(reducer, to): int(VECTOR * shares[reducer]) for reducer, _ in average for to in (*HERE, *THERE)}
    average = {pair: size for pair, size in average.items() if pair[0] != pair[1]}
    both = {pair: gradient.get(pair, 0) + average.get(pair, 0) for pair in gradient | average}
    alone = {(flow.sender, flow.receiver): flow.last_s for flow in flows_over(true_links(), both, between)}
    flows = []
    for (sender, receiver), size in gradient.items():
        slowest = max(seconds for (of, _), seconds in alone.items() if of == sender)
        is_full = alone[sender, receiver] > 0.9 * slowest
        asked = plan.duration_s / PACE
        flows.append(Flow(sender, receiver, size, 0.0, slowest, asked, True, slowest if is_full else 0.0))
    for (sender, receiver), size in average.items():
        flows.append(Flow(sender, receiver, size, 0.0, alone[sender, receiver], plan.duration_s))
    return max(flow.last_s for flow in flows), flows


def test_rounds_between_two_regions_come_near_the_optimum() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    best_s = solve(parties(), VECTOR, Limits(far_pairs())).duration_s
    first_s, _ = a_round(pairs, far_pairs())
    assert first_s > 1.3 * best_s, "nobody knows yet"
    for number in range(4):
        took_s, flows = a_round(pairs, far_pairs())
        learn(known, pairs, flows, number)
    assert took_s < 1.1 * best_s, "flows here share links in equal parts, not by what each has to carry"
    assert pairs.keys() == far_pairs().keys()
    assert all(0.9 * FAR < each.bps < 1.05 * FAR for each in pairs.values())
    assert all(known[peer, way].bps == LINK for peer in (*HERE, *THERE) for way in WAYS)


@pytest.mark.parametrize("part", [0.5, 0.65])
def test_pair_measured_in_a_bad_moment_recovers_its_capacity(part: float) -> None:
    """The few bytes that the plan sends over a seemingly slow pair arrive on time."""
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    for pair in far_pairs():
        pairs[pair] = Capacity(FAR, is_floor=False, measured_at=0, is_tried=True)
    pairs[HERE[0], THERE[0]].bps *= part
    best_s = solve(parties(), VECTOR, Limits(far_pairs())).duration_s
    for number in range(1, 16):
        took_s, flows = a_round(pairs, far_pairs())
        assert took_s < 1.15 * best_s / part**0.5
        learn(known, pairs, flows, number)
    assert 0.9 * FAR < pairs[HERE[0], THERE[0]].bps < 1.05 * FAR
    assert took_s < 1.1 * best_s


@pytest.mark.parametrize(
    ("part", "asked_s", "factor"),
    [
        (0.9, 4.0, HOPE),
        (0.8, 4.0, 1.0),  # nothing shows that the remaining bytes would have arrived
        (0.9, 3.0, 1.0),  # one of the flow's ends held it up
        (0.9, 0.0, 1.0),  # the plan asked for full speed
    ],
)
def test_pair_is_hoped_faster_only_if_all_that_fits_came_in_time(part: float, asked_s: float, factor: float) -> None:
    pair = HERE[0], THERE[0]
    known, pairs = believed(true_links()), {pair: Capacity(FAR, is_floor=False, measured_at=0, is_tried=True)}
    known[HERE[0], "up"].bps = FAR
    learn(known, pairs, [Flow(*pair, int(part * FAR * 4.0), 0.0, 4.0, asked_s)], 1)
    assert limits_of(pairs) == {pair: FAR}
    assert limits_of(pairs, hopes=True) == {pair: FAR * factor}


def test_where_no_pair_is_narrow_none_is_found() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    for number in range(5):
        _, flows = a_round(pairs, {})
        learn(known, pairs, flows, number)
    assert not pairs


def test_a_pair_that_carries_more_than_before_is_raised() -> None:
    pairs = {(HERE[0], THERE[0]): Capacity(100_000.0, is_floor=False, measured_at=0, is_tried=True)}
    learn(believed(true_links()), pairs, [Flow(HERE[0], THERE[0], 1_000_000, 0.0, 4.0, 4.0)], 1)
    assert pairs[HERE[0], THERE[0]].bps == pytest.approx(250_000)
    learn(believed(true_links()), pairs, [Flow(HERE[0], THERE[0], 2**50, 0.0, SHORTEST_S)], 2)
    assert pairs[HERE[0], THERE[0]].bps == pytest.approx(1_000_000), "at most by so much in a round"


def full_sender(*full_s: float) -> list[Flow]:
    """Return one sender's flows to receivers with equal links. Each flow takes twice the planned time."""
    return [Flow(HERE[0], to, VECTOR, 0.0, 8.0, 4.0, True, each) for to, each in zip(THERE, full_s, strict=False)]


def others_of(receivers: Sequence[PeerId]) -> list[Flow]:
    return [Flow(HERE[1], to, VECTOR, 0.0, 4.0, 4.0, True, 0.0) for to in receivers]


def test_a_sender_whose_ways_are_all_full_is_full_itself() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    learn(known, pairs, [*full_sender(8.0, 8.0, 8.0), *others_of(THERE)], 1)
    assert not pairs
    assert known[HERE[0], "up"].bps < LINK


def test_a_receiver_to_which_all_ways_are_full_is_full_itself() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    flows = [
        flow
        for sender in HERE
        for flow in (
            Flow(sender, THERE[0], VECTOR, 0.0, 8.0, 4.0, True, 8.0),
            Flow(sender, THERE[1], VECTOR, 0.0, 8.0, 4.0, True, 0.0),
        )
    ]
    learn(known, pairs, flows, 1)
    assert not pairs
    assert known[THERE[0], "down"].bps < LINK
    assert known[THERE[1], "down"].bps == LINK


def test_one_full_way_of_many_is_the_pairs_and_lowers_no_link() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    learn(known, pairs, [*full_sender(8.0, 0.0, 0.0), *others_of(THERE)], 1)
    assert pairs.keys() == {(HERE[0], THERE[0])}
    assert pairs[HERE[0], THERE[0]].bps == VECTOR / 8
    assert not limits_of(pairs), "once may be a machine that was busy"
    learn(known, pairs, [*full_sender(8.0, 0.0, 0.0), *others_of(THERE)], 2)
    assert limits_of(pairs) == {(HERE[0], THERE[0]): VECTOR / 8}
    assert {direction: each.bps for direction, each in known.items()} == true_links()


@pytest.mark.parametrize(("used", "is_narrow"), [(1.0, False), (0.75, False), (0.6, True)])
def test_a_direction_with_little_room_is_what_holds_up(used: float, is_narrow: bool) -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    known[HERE[0], "up"].bps = 3 * VECTOR / 8.0 / used
    learn(known, pairs, [*full_sender(8.0, 0.0, 0.0), *others_of(THERE)], 1)
    assert bool(pairs) is is_narrow


def test_flow_that_filled_its_link_briefly_blames_no_pair() -> None:
    """A fast peer sends its gradients ahead of the plan. Its averages are late, and so are those of slow peers."""
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    gradients = [Flow(HERE[0], to, VECTOR, 0.0, 1.2, 0.4, True, 1.2) for to in THERE[:3]]
    averages = [Flow(HERE[0], to, VECTOR, 2.0, 8.0, 6.0) for to in THERE[:3]]
    learn(known, pairs, [*gradients, *averages, *others_of(THERE)], 1)
    assert not pairs
    slower = [replace(flow, received=VECTOR // 2) for flow in gradients]
    learn(known, pairs, [*slower, *averages, *others_of(THERE)], 2)
    assert pairs.keys() == {(HERE[0], to) for to in THERE[:3]}, "there was room all along"


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("waiting", "is_excused"), [(1, False), (2, False), (3, True)])
def test_what_waited_for_pairs_that_nobody_knew_of_was_not_tried(
    waiting: int, is_excused: bool, is_known: bool
) -> None:
    """A sender's flows keep step with its slowest pair. More than half of the senders to the relay have an
    unexpectedly slow pair.
    """
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    known[RELAY, "down"] = Capacity(4 * VECTOR / 8.0, is_floor=True, measured_at=0)
    for here in HERE[:waiting] if is_known else ():
        pairs[here, THERE[0]] = Capacity(VECTOR / 8, is_floor=False, measured_at=0, is_tried=True)
    narrow = [Flow(here, THERE[0], VECTOR, 0.0, 8.0, 4.0, True, 8.0) for here in HERE[:waiting]]
    free = [Flow(here, to, VECTOR, 0.0, 4.0, 4.0, True, 0.0) for here in HERE for to in THERE[1:]]
    late = [Flow(there, THERE[0], VECTOR, 0.0, 4.0, 4.0, True, 0.0) for there in THERE[1:]]
    to_relay = [Flow(here, RELAY, VECTOR, 0.0, 8.0, 4.0, True, 0.0) for here in HERE]
    learn(known, pairs, [*narrow, *free, *late, *to_relay], 1, hoped_s=4.0)
    assert len(pairs) == waiting
    assert known[RELAY, "down"].is_tried is not (is_excused and not is_known)


def test_of_ways_of_which_nothing_is_known_no_pair_is_found() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    del known[HERE[0], "up"]
    learn(known, pairs, [*full_sender(8.0, 0.0, 0.0), *others_of(THERE)], 1)
    assert not pairs


def test_old_pairs_are_forgotten_and_their_number_is_bounded() -> None:
    pairs = {(HERE[0], THERE[0]): Capacity(1.0, is_floor=False, measured_at=0)}
    learn_pairs(pairs, {}, set(), set(), ROUNDS_KEPT - 1)
    assert pairs
    learn_pairs(pairs, {}, set(), set(), ROUNDS_KEPT)
    assert not pairs
    many = {(PeerId(f"{n:032x}"), RELAY): Capacity(1.0, is_floor=False, measured_at=n / 1e6) for n in range(3000)}
    learn_pairs(many, {}, set(), set(), 1)
    assert len(many) == MOST_PAIRS
    assert min(each.measured_at for each in many.values()) == (3000 - MOST_PAIRS) / 1e6


def test_a_suspicion_that_is_not_found_again_is_dropped() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    learn(known, pairs, [*full_sender(8.0, 0.0, 0.0), *others_of(THERE)], 1)
    assert pairs
    learn(known, pairs, [Flow(HERE[0], THERE[0], VECTOR, 0.0, 4.0, 4.0, True, 0.0), *others_of(THERE)], 2)
    assert not pairs


def test_where_nobody_keeps_a_pace_no_pair_is_found() -> None:
    known, pairs = believed(true_links()), dict[Pair, Capacity]()
    flows = [Flow(HERE[0], to, VECTOR, 0.0, 8.0, 0.0, True, full) for to, full in zip(THERE, (8, 0, 0), strict=False)]
    learn(known, pairs, [*flows, *others_of(THERE)], 1)
    assert not pairs
