"""The paper's program gives a lower bound: tight for equal peers, lower where averaging an element twice pays off."""

import random

import pytest
from msgspec.structs import replace

from peer_agent.protocol.plan import Limits, Party, solve
from tests.benchmarks.measures import published as module
from tests.benchmarks.measures.published import published_bound
from tests.protocol.plan.instances import albert, auxiliary, coupled, keeper, peer, trainer, trainers, two_regions


@pytest.mark.parametrize("seed", range(60))
def test_bound_equals_plan_if_all_contribute_and_own_links_limit(seed: int) -> None:
    chance = random.Random(seed)
    uploads = [10 ** chance.uniform(0, 2) for _ in range(chance.randint(1, 10))]
    parties = [trainer(i, up, up * 10 ** chance.uniform(-1, 1)) for i, up in enumerate(uploads)]
    assert published_bound(parties, 1.0) == pytest.approx(solve(parties, 1.0).duration_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_never_above_the_plan(seed: int) -> None:
    parties, down, limits = coupled(seed, 8)
    assert published_bound(parties, down, limits) <= solve(parties, down, limits).duration_s * (1 + 1e-6)


@pytest.mark.parametrize(
    ("parties", "duration"),
    [(trainers(8, 1.0), 1.75), ([*trainers(16, 0.2), auxiliary(30, 2.5)], 5.568445), (albert(), 20.0)],
)
def test_known_set_ups(parties: list[Party], duration: float) -> None:
    assert published_bound(parties, 1.0) == pytest.approx(duration, rel=1e-6)


def test_two_regions_have_the_plan_that_the_paper_has() -> None:
    parties, limits = two_regions()
    assert published_bound(parties, 1.0, limits) == pytest.approx(20 / 9, rel=1e-6)


def test_bound_averages_an_element_twice_where_a_plan_may_not() -> None:
    """Each relay has slow links to half of the receivers. The best solution lets both relays average nearly
    everything."""
    near = [replace(party, may_reduce=False) for party in trainers(4, 1.0)]
    parties = [*near, auxiliary(10, 8.0), auxiliary(11, 8.0)]
    limits = Limits(pairs={(peer(10 + (i < 2)), peer(i)): 0.1 for i in range(4)})
    assert solve(parties, 1.0, limits).duration_s == pytest.approx(5.0)
    assert published_bound(parties, 1.0, limits) == pytest.approx(5 / 3)


def test_so_it_does_without_limits_on_pairs() -> None:
    """A trainer with a slow uplink and a fast downlink averages for itself the elements that the auxiliary averages
    for the other trainers.
    """
    fast = [replace(trainer(i, 100.0), may_reduce=False) for i in (1, 2)]
    parties = [trainer(0, 1.5, 7.0), *fast, replace(auxiliary(5, 1.5), download_bps=7.0)]
    assert solve(parties, 1.0).duration_s == pytest.approx(1.0)
    assert published_bound(parties, 1.0) == pytest.approx(8 / 9)


def test_a_pair_that_is_forwarded_has_no_limit_of_its_own() -> None:
    parties = [*trainers(2, 1.0), replace(auxiliary(9, 100.0), may_reduce=False)]
    thin = {(peer(0), peer(1)): 0.1, (peer(1), peer(0)): 0.1}
    assert published_bound(parties, 1.0, Limits(pairs=thin)) == pytest.approx(10.0)
    assert published_bound(parties, 1.0, Limits(pairs=thin, forwarded=dict.fromkeys(thin, peer(9)))) == pytest.approx(
        1.0
    )


def test_where_nothing_has_to_be_sent_it_is_0() -> None:
    assert published_bound(trainers(1, 1.0), 1.0) == 0.0
    assert published_bound([auxiliary(1, 1.0), replace(keeper(2, 1.0), is_awaited=False)], 0.0) == 0.0


def test_it_is_for_few() -> None:
    with pytest.raises(ValueError, match="more than 64"):
        published_bound(trainers(65, 1.0), 1.0)
    with pytest.raises(ValueError, match="nobody"):
        published_bound([keeper(0, 1.0)], 1.0)
    assert module.MOST == 64
