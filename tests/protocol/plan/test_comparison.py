"""Comparing many choices at once gives the same durations as planning each one separately."""

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.protocol.plan import Limits, Party, solve
from peer_agent.protocol.plan.comparison import Candidate, Comparison
from tests.protocol.plan.instances import auxiliary, mixed, peer, trainer

CODECS = (1.0, 0.25)


def compared(seed: int, staleness: int = 0) -> tuple[Comparison, list[Candidate], list[Party], float]:
    """Return a random round's contributors as candidates, with two codecs each."""
    parties, down = mixed(seed, 12)
    parties = [replace(party, household="") for party in parties]
    candidates = [
        Candidate(p, 1.0 + i, tuple(p.up_bytes * c for c in CODECS)) for i, p in enumerate(parties) if p.up_bytes
    ]
    candidates = candidates or [Candidate(trainer(99, 1e6), 1.0, (1e6, 1e5))]
    others = [party for party in parties if not party.up_bytes]
    return Comparison(candidates[::-1], others, down, 100, staleness), candidates, others, down


@pytest.mark.parametrize("seed", range(40))
def test_durations_are_those_of_the_plans(seed: int) -> None:
    comparison, candidates, others, down = compared(seed)
    found = np.random.default_rng(seed).integers(-1, len(CODECS), (5, len(candidates)))
    for codecs, duration in zip(found, comparison.durations(found), strict=True):
        chosen = [
            replace(c.party, up_bytes=c.up_bytes[codec])
            if codec >= 0
            else replace(c.party, up_bytes=0.0, is_awaited=False)
            for c, codec in zip(candidates, codecs, strict=True)
        ]
        assert duration == pytest.approx(solve([*chosen, *others], down).duration_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_nobody_contributes_in_less_than_its_own_time(seed: int) -> None:
    comparison, candidates, _, _ = compared(seed)
    for codec in range(len(CODECS)):
        found = np.full((1, len(candidates)), codec)
        alone = [c.party.may_reduce for c in candidates]  # a reducer sends less than its whole gradient
        own = np.where(alone, 0.0, comparison.own_times()[:, codec])
        assert own.max() <= comparison.durations(found)[0] * (1 + 1e-9)


def test_the_batch_is_made_before_the_exchange_or_beside_it() -> None:
    for staleness, steps in ((0, [103.0, 10.0]), (1, [100.0, 6.0])):
        candidates = [Candidate(trainer(i, 1.0), speed, (1.0,)) for i, speed in enumerate((1.0, 24.0))]
        comparison = Comparison(candidates, [], 1.0, 100, staleness)
        found = np.array([[0, -1], [0, 0]])
        assert comparison.steps(found, np.array([3.0, 6.0])).tolist() == steps


def test_pairs_narrow_the_links_of_those_who_do_not_reduce() -> None:
    relays = [auxiliary(8, 9.0), auxiliary(9, 9.0)]
    candidates = [Candidate(replace(trainer(i, 5.0), may_reduce=i == 2), 1.0, (1.0,)) for i in range(3)]
    to = {(peer(i), relay.peer): 1.0 for i in (0, 2) for relay in relays} | {(peer(1), peer(8)): 1.0}
    comparison = Comparison(candidates[:2], relays, 1.0, 1, 0)
    comparison.narrow(Limits(pairs=to | {(relay, end): 2.0 for end, relay in to}))
    assert comparison.table.upload.tolist() == [2.0, 5.0, 9.0, 9.0]
    assert comparison.table.download.tolist() == [4.0, 5.0, 9.0, 9.0]
    comparison = Comparison(candidates[:1], relays, 1.0, 1, 0)
    comparison.narrow(Limits(pairs=to, forwarded={(peer(0), peer(8)): peer(9)}))
    assert comparison.table.upload.tolist() == [5.0, 9.0, 9.0]
    comparison = Comparison(candidates[2:], relays, 1.0, 1, 0)
    comparison.narrow(Limits(pairs=to))
    assert comparison.table.upload.tolist() == [5.0, 9.0, 9.0]
