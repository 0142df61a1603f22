"""Linear programs with coupled shares: the choice among the fastest plans, and the fallback if the HiGHS solver gives
up.
"""

import random
import subprocess
import sys

import numpy as np
import pytest

from peer_agent.protocol.plan import Limits, Party, solve
from peer_agent.protocol.plan import linear_program as module
from peer_agent.protocol.plan.program import program_of
from tests.protocol.plan import by_hand
from tests.protocol.plan.instances import auxiliary, peer, trainers, two_regions


def thin_between(parties: list[Party], speed: float) -> Limits:
    return Limits(pairs={(a.peer, b.peer): speed for a in parties for b in parties if a is not b})


def test_peers_that_are_alike_get_alike() -> None:
    parties = trainers(5, 1.0)
    plan = solve(parties, 1.0, thin_between(parties, 0.05))
    assert plan.duration_s == pytest.approx(8.0, rel=1e-7)
    assert plan.shares == pytest.approx((0.2,) * 5, rel=1e-6)


def test_thin_pair_takes_nothing_from_peers_it_does_not_limit() -> None:
    parties = trainers(6, 1.0)
    plan = solve(parties, 1.0, Limits(pairs={(peer(0), peer(1)): 0.05, (peer(1), peer(0)): 0.05}))
    assert plan.shares[:2] == pytest.approx((plan.shares[0],) * 2, rel=1e-6)
    assert plan.shares[2:] == pytest.approx((plan.shares[2],) * 4, rel=1e-6)
    assert 0 < plan.shares[0] < plan.shares[2]


@pytest.mark.parametrize("seed", range(10))
def test_fastest_plan_still_gives_equal_relays_equal_shares(seed: int) -> None:
    """The trainers limit the time, and one relay has slow pairs. The other relays still get equal shares."""
    chance = random.Random(seed)
    parties = [*trainers(6, 1.0), *(auxiliary(10 + i, 50.0) for i in range(chance.randint(2, 5)))]
    slow = {(party.peer, parties[-1].peer): 0.2 * chance.uniform(0.9, 1.0) for party in parties[:6]}
    plan = solve(parties, 1.0, Limits(pairs=slow))
    _, table = by_hand.seconds(parties, 1.0, Limits(pairs=slow))
    assert plan.duration_s == pytest.approx(by_hand.least(table), rel=1e-6)
    relays = plan.shares[6:]
    assert sum(relays) == pytest.approx(1.0)
    assert relays[:-1] == pytest.approx((relays[0],) * (len(relays) - 1), rel=1e-6)
    assert relays[-1] <= relays[0] * (1 + 1e-6)


def test_rows_that_cannot_bind_are_left_out() -> None:
    parties, limits = two_regions()
    program = program_of(parties, 1.0, limits)
    assert len(program.rows) == 18 + 32
    assert len(module.scaled_rows(program, 1e9).rows) == 0
    assert len(module.scaled_rows(program, 1e-9).rows) == 50


def test_where_highs_gives_up_the_plan_is_slower_and_feasible(monkeypatch: pytest.MonkeyPatch) -> None:
    parties, limits = two_regions()
    best = solve(parties, 1.0, limits)
    monkeypatch.setattr(module, "MOST_ITERATIONS", 0)
    plan = solve(parties, 1.0, limits)
    _, table = by_hand.seconds(parties, 1.0, limits)
    assert plan.duration_s == pytest.approx((table @ np.array(plan.shares)).max())
    assert plan.duration_s > best.duration_s
    assert plan.limits == ()


def test_where_levelling_gives_up_the_plan_is_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    parties, limits = two_regions()
    monkeypatch.setattr(module, "MOST_LEVELS", 0)
    plan = solve(parties, 1.0, limits)
    assert plan.duration_s == pytest.approx(20 / 9)
    assert len(set(plan.shares)) > 2, "one of HiGHS's corners"


def test_who_makes_no_such_plan_does_not_load_scipy() -> None:
    """Relays and agents import the plan module. Loading scipy would cost each of them 0.3 s of CPU time and 44 MB."""
    code = "import sys, peer_agent.protocol.plan as p; p.solve([p.Party(peer='a', may_reduce=True)], 1.0)"
    code += "; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
