"""Which weathers the worlds of the tests have."""

from peer_agent.simulation import churn
from peer_agent.simulation.churn import Weather, only
from peer_agent.simulation.faults import Kind

ALL_KINDS: tuple[Kind, ...] = tuple(sorted({*churn.TRAINERS, *churn.RELAYS, *churn.SITE, *churn.ODDS}))

# Trainers and rounds of the worlds with all weathers. Larger ones are in tests/benchmarks/simulator.py.
SIZES = ((200, 50), (50, 500))


def all_at_once(scale: float = 1.0) -> Weather:
    """All weathers in one world."""
    return only(set(ALL_KINDS), scale)
