"""A plan names the round's true limits. They are used in full at T, and wider links elsewhere do not shorten the
round.
"""

from collections.abc import Iterable

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol.plan import Kind, Limit, Limits, Party, Shares, solve
from tests.protocol.plan import by_hand
from tests.protocol.plan.instances import coupled, mixed

Link = by_hand.Link
MOST = 8  # most limits that a plan names
SLACK = 1e-6
SURE = settings(max_examples=60)  # kept small, as some examples need the slow solver HiGHS
seeds = st.integers(0, 10**6)


def links_of(limit: Limit, parties: Iterable[Party]) -> Link:
    match limit.kind:
        case Kind.PAIR:
            return limit.kind.value, limit.peers
        case Kind.HOUSEHOLD:
            return limit.kind.value, next(party.household for party in parties if party.peer == limit.peers[0])
        case _:
            return limit.kind.value, limit.peers[0]


def wider(parties: list[Party], limits: Limits, links: Iterable[Link], factor: float) -> tuple[list[Party], Limits]:
    names = {"up": "upload_bps", "down": "download_bps", "duplex": "duplex_bps"}
    by_peer = {party.peer: party for party in parties}
    pairs, households = dict(limits.pairs), dict(limits.households)
    for kind, whose in links:
        if kind == "pair":
            pairs[whose] *= factor  # type: ignore[index]
        elif kind == "household":
            households[whose] *= factor  # type: ignore[index]
        else:
            party = by_peer[whose]  # type: ignore[index]
            by_peer[party.peer] = replace(party, **{names[kind]: getattr(party, names[kind]) * factor})
    return list(by_peer.values()), Limits(pairs=pairs, forwarded=limits.forwarded, households=households)


def named(plan: Shares, parties: list[Party]) -> set[Link]:
    return {links_of(limit, parties) for limit in plan.limits}


def all_named(plan: Shares) -> bool:
    return len(plan.limits) < MOST and sum(limit.part for limit in plan.limits) > 0.999


def check(parties: list[Party], down: float, limits: Limits) -> None:
    plan = solve(parties, down, limits)
    assume(plan.duration_s > 0)
    assert plan.limits, "something limits every round that takes time"
    found = named(plan, parties)
    _, table = by_hand.seconds(parties, down, limits)
    times = dict(zip(by_hand.capacities(parties, limits), table @ np.array(plan.shares), strict=True))
    for link in found:
        assert times[link] >= plan.duration_s * (1 - SLACK), f"{link} has time to spare"

    def changed(links: Iterable[Link], factor: float) -> float:
        others, wide = wider(parties, limits, links, factor)
        return solve(others, down, wide).duration_s

    assert changed([min(found, key=str)], 0.9) > plan.duration_s * (1 + SLACK), "what is named does not matter"
    if all_named(plan):
        rest = [link for link in times if link not in found]
        assert changed(rest, 1.5) >= plan.duration_s * (1 - SLACK), "something else would shorten the round"


@SURE
@given(seeds)
@example(58)  # one upload needs its reducer to take more, one download to take less
def test_of_links_of_ones_own(seed: int) -> None:
    parties, down = mixed(seed, 12, unmeasured=0.0)
    check([replace(party, household="") for party in parties], down, Limits())


@SURE
@given(seeds)
def test_of_links_that_are_shared(seed: int) -> None:
    parties, down, limits = coupled(seed, 8)
    measured = [replace(p, upload_bps=p.upload_bps or 1e6, download_bps=p.download_bps or 1e6) for p in parties]
    check(measured, down, limits)
