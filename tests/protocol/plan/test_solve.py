"""Plans are optimal for the share program, as checked with HiGHS on independent rows and for known set-ups."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import NO_LIMITS, Kind, Limits, Party, Shares, judged, solve
from tests.protocol.plan import by_hand
from tests.protocol.plan.instances import (
    albert,
    auxiliary,
    coupled,
    keeper,
    mixed,
    peer,
    trainer,
    trainers,
    two_regions,
)

EXACT = 1e-6
A, B = trainers(8, 1.0), trainers(16, 0.2, 8)
HOMES = [trainer(i, 0.02, 0.1) for i in range(6)] + [
    replace(trainer(6 + i, 0.02, 0.1), may_reduce=False) for i in range(10)
]


def check(parties: list[Party], down: float, limits: Limits = NO_LIMITS) -> Shares:
    """Solve, then check the shares against the rows and the time against HiGHS."""
    plan = solve(parties, down, limits)
    reducers, table = by_hand.seconds(parties, down, limits)
    shares = np.array(plan.shares)
    assert list(plan.reducers) == reducers
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert (table @ shares).max(initial=0.0) == pytest.approx(plan.duration_s, rel=1e-9), "a row takes longer"
    assert plan.duration_s == pytest.approx(by_hand.least(table), rel=EXACT), "not the optimum"
    return plan


# --- the optimum, and nothing that a link cannot carry


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_the_closed_form_is_the_optimum_and_feasible(first: int) -> None:
    for seed in range(first, first + 50):
        parties, down = mixed(seed)
        check([replace(party, household="") for party in parties], down)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_shares_coupled_by_pairs_or_households_are_optimal_too(first: int) -> None:
    for seed in range(first, first + 50):
        check(*coupled(seed))


def test_the_order_in_which_peers_are_listed_changes_nothing() -> None:
    for seed in range(20):
        parties, down, limits = coupled(seed)
        assert solve(parties[::-1], down, limits) == solve(parties, down, limits)


numbers = st.sampled_from([0.0, 1e-18, 1.0, 1e18]) | st.floats(1e-18, 1e18)


@st.composite
def claims(draw: st.DrawFn) -> list[Party]:
    sizes = ("up_bytes", "upload_bps", "download_bps", "duplex_bps")
    flags = ("receives", "is_awaited", "may_reduce", "is_volunteer")
    return [
        Party(
            peer=peer(i),
            household="one",
            **{name: draw(numbers) for name in sizes},  # type: ignore[arg-type]
            **{name: draw(st.booleans()) for name in flags},
        )
        for i in range(draw(st.integers(1, 5)))
    ]


@given(claims(), numbers, st.dictionaries(st.tuples(*[st.sampled_from([peer(i) for i in range(6)])] * 2), numbers))
def test_whatever_is_claimed_there_is_a_plan(
    parties: list[Party], down: float, pairs: dict[tuple[PeerId, PeerId], float]
) -> None:
    parties.append(auxiliary(9, 1.0))
    plan = solve(parties, down, Limits(pairs=pairs, households={"one": 1.0}))
    assert sum(plan.shares) == pytest.approx(1)
    assert min(plan.shares) >= 0
    assert math.isfinite(plan.duration_s)
    assert all(0 < limit.part <= 1.001 for limit in plan.limits)


# --- the known algorithms, and the literature's table (P over 1 Gb/s)


@pytest.mark.parametrize(
    ("parties", "duration"),
    [
        (A, 1.75),
        (B, 9.375),
        ([*A, *B], 5.0),
        ([*B, auxiliary(30, 2.5)], 5.568445),
        (albert(), 20.0),
        ([*albert(), *(auxiliary(20 + i, 1.0) for i in range(4))], 20.0),
        ([*HOMES, auxiliary(30, 1.0), auxiliary(31, 1.0)], 50.0),
        ([*A, keeper(30, 1.0)], 1.875),
        ([*B, keeper(30, 1.0)], 9.6875),
        ([*A, *B, keeper(30, 1.0)], 5.0),
    ],
)
def test_set_ups_of_the_literature(parties: list[Party], duration: float) -> None:
    assert check(parties, 1.0).duration_s == pytest.approx(duration, rel=1e-6)


def test_two_regions_with_thin_pairs_between_them() -> None:
    parties, limits = two_regions()
    plan = check(parties, 1.0, limits)
    assert plan.duration_s == pytest.approx(20 / 9, rel=1e-6)
    assert plan.shares == pytest.approx((1 / 18,) * 8 + (10 / 18,), rel=1e-6), "both regions alike"


@pytest.mark.parametrize("count", [2, 3, 8, 24])
def test_equal_peers_are_an_all_reduce(count: int) -> None:
    plan = check(trainers(count, 1.0), 1.0)
    assert plan.shares == pytest.approx((1 / count,) * count)
    assert plan.duration_s == pytest.approx(2 * (count - 1) / count)


def test_one_fast_relay_is_a_parameter_server() -> None:
    plan = check([*A, auxiliary(30, 100.0)], 1.0)
    assert (plan.shares, plan.duration_s) == ((0.0,) * 8 + (1.0,), 1.0)


def test_processors_beside_trainers_are_byteps() -> None:
    plan = check([*A, *(auxiliary(30 + i, 1.0) for i in range(8))], 1.0)
    assert plan.shares == pytest.approx((0.0,) * 8 + (1 / 8,) * 8)
    assert plan.duration_s == 1.0


def test_lone_trainer_needs_no_link_and_with_a_keeper_one_vector() -> None:
    assert check(trainers(1, 1.0), 1.0) == Shares((peer(0),), (1.0,), 0.0)
    assert check([*trainers(1, 1.0), keeper(1, 0.5)], 1.0).duration_s == 2.0


def test_two_trainers_swap_halves() -> None:
    assert check(trainers(2, 1.0), 1.0).duration_s == 1.0


def test_a_relay_that_reduces_costs_less_than_one_that_forwards() -> None:
    """Rule 27: a share reduced behind a relay passes through that relay twice."""
    behind = [replace(party, may_reduce=party.peer == peer(0)) for party in A]
    relay = replace(auxiliary(30, 1.0), may_reduce=False)
    pairs = [(a.peer, b.peer) for a in A for b in A if a is not b]
    forwarded = check([*behind, relay], 1.0, Limits(forwarded=dict.fromkeys(pairs, relay.peer)))
    reduced = check([*(replace(party, may_reduce=False) for party in A), replace(relay, may_reduce=True)], 1.0)
    assert (reduced.duration_s, forwarded.duration_s) == (8.0, 14.0)


# --- unmeasured links


def test_unmeasured_shares_are_equal_and_go_to_relays_first() -> None:
    unmeasured = [trainer(i, 0.0) for i in range(3)]
    assert solve(unmeasured, 1.0).shares == (1 / 3,) * 3
    relays = [Party(peer=peer(8 + i), may_reduce=True) for i in range(2)]
    assert solve([*unmeasured, *relays], 1.0).shares == (0.0, 0.0, 0.0, 0.5, 0.5)
    assert solve([*unmeasured, *relays], 1.0).duration_s == 0.0


def test_who_is_not_measured_counts_as_the_slowest_of_its_kind() -> None:
    receiving = [replace(trainer(i, 50.0), may_reduce=False) for i in range(2)]
    plan = solve([*receiving, auxiliary(7, 3.0), auxiliary(8, 1.0), auxiliary(9, 0.0)], 1.0)
    assert plan.shares == pytest.approx((0.6, 0.2, 0.2))


def test_among_those_with_time_to_spare_the_faster_gets_more() -> None:
    receiving = [replace(trainer(i, 0.01), may_reduce=False) for i in range(2)]
    assert solve([*receiving, auxiliary(7, 9.0), auxiliary(8, 1.0)], 1.0).shares == pytest.approx((0.9, 0.1))


def test_somebody_must_reduce() -> None:
    with pytest.raises(ValueError, match="nobody"):
        solve([keeper(0, 1.0)], 1.0)
    with pytest.raises(ValueError, match="nobody"):
        solve([], 1.0)


# --- what the round waits for


def named(plan: Shares) -> dict[tuple[str, ...], float]:
    return {(limit.kind, *(who[-2:] for who in limit.peers)): round(limit.part, 3) for limit in plan.limits}


def test_the_slowest_upload_limits_whatever_reduces_elsewhere() -> None:
    parties = [*A, trainer(9, 0.1, 1.0), auxiliary(30, 100.0)]
    assert named(solve(parties, 1.0)) == {("up", "09"): 1.0}
    assert named(solve([*A, trainer(9, 1.0, 0.1), auxiliary(30, 100.0)], 1.0)) == {("down", "09"): 1.0}


def test_two_that_are_as_slow_are_both_named() -> None:
    parties = [*A, trainer(9, 0.1), trainer(10, 0.1), auxiliary(30, 100.0)]
    assert named(solve(parties, 1.0)) == {("up", "09"): 0.5, ("up", "0a"): 0.5}


def test_an_even_round_waits_for_all_of_them_alike() -> None:
    assert named(solve(A, 1.0)) == {("up", f"0{i}"): 0.125 for i in range(8)}


def test_a_household_a_pair_and_a_half_duplex_link_are_named() -> None:
    home = [replace(party, household="home" if i < 4 else "") for i, party in enumerate(A)]
    plan = solve(home, 1.0, Limits(households={"home": 1.0}))
    assert named(plan) == {("household", "00", "01", "02", "03"): 1.0}
    parties, limits = two_regions()
    kinds = [limit.kind for limit in solve(parties, 1.0, limits).limits]
    assert kinds == [Kind.UP] + [Kind.PAIR] * 4
    wifi = [replace(trainers(1, 1.0)[0], duplex_bps=0.5), *trainers(3, 1.0, 1), auxiliary(30, 10.0)]
    assert named(solve(wifi, 1.0)) == {("duplex", "00"): 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_a_part_says_how_much_shorter_the_round_would_be(seed: int) -> None:
    chance = random.Random(seed)
    parties = trainers(6, 1.0)
    pairs = {(a.peer, b.peer): chance.uniform(0.02, 0.1) for a in parties for b in parties if a is not b}
    plan = check(parties, 1.0, Limits(pairs=pairs))
    assert sum(limit.part for limit in plan.limits) == pytest.approx(1, abs=1e-3)
    for limit in plan.limits:
        sender, receiver = limit.peers
        wider = pairs | {(sender, receiver): 1.0001 * pairs[sender, receiver]}
        shorter = solve(parties, 1.0, Limits(pairs=wider)).duration_s
        assert 1 - shorter / plan.duration_s == pytest.approx(0.0001 * limit.part, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_so_it_does_where_only_own_links_limit(seed: int) -> None:
    chance = random.Random(seed)
    parties = [trainer(i, chance.uniform(1, 2), 10.0) for i in range(5)]
    parties.append(replace(auxiliary(5, chance.uniform(1, 3)), download_bps=10.0))
    plan = check(parties, 1.0)
    assert {limit.kind for limit in plan.limits} == {Kind.UP}
    assert sum(limit.part for limit in plan.limits) == pytest.approx(1)
    for limit in plan.limits:
        faster = [replace(p, upload_bps=p.upload_bps * 1.0001) if (p.peer,) == limit.peers else p for p in parties]
        shorter = solve(faster, 1.0).duration_s
        assert 1 - shorter / plan.duration_s == pytest.approx(0.0001 * limit.part, rel=0.01)


def test_shares_are_judged_over_other_links() -> None:
    parties = [trainer(0, 2.0, 100.0), trainer(1, 1.0, 100.0), auxiliary(2, 100.0)]
    found = solve(parties, 1.0)
    assert judged(found, parties, 1.0).duration_s == pytest.approx(found.duration_s)
    slower = [replace(parties[0], upload_bps=0.1), *parties[1:]]
    there = judged(found, slower, 1.0)
    assert there.shares == found.shares
    reducers, table = by_hand.seconds(slower, 1.0)
    assert list(there.reducers) == reducers
    assert there.duration_s == pytest.approx(float((table @ np.array(found.shares)).max()))
    assert [(limit.kind, limit.peers, limit.part) for limit in there.limits] == [(Kind.UP, (peer(0),), 1.0)]
