"""Which weathers the worlds of the tests have."""

import pytest

from peer_agent.simulation import churn
from peer_agent.simulation.churn import Weather, only
from peer_agent.simulation.faults import Kind

ALL_KINDS: tuple[Kind, ...] = tuple(sorted({*churn.TRAINERS, *churn.RELAYS, *churn.SITE, *churn.ODDS}))

# Trainers and rounds of the worlds with all weathers. Larger ones are in tests/benchmarks/simulator.py.
SIZES = ((30, 30), pytest.param(200, 50, marks=pytest.mark.check), pytest.param(50, 500, marks=pytest.mark.check))


def all_at_once(scale: float = 1.0) -> Weather:
    """All weathers in one world."""
    return only(set(ALL_KINDS), scale)
