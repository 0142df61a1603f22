"""Rivals that are our own engine with another plan: an equal butterfly, and one parameter server.

The shipped coordinator calls `solve` for shares; within `planned_by` another function answers. Nothing else differs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Limits, Party, Shares, judged
from tests.emulation.setups import Rates, Setup

Solve = Callable[[Sequence[Party], float, Limits], Shares]


def butterfly(parties: Sequence[Party], down_bytes: float, limits: Limits) -> Shares:
    """Return equal shares for reachable trainers, or for all reducers if there are none. Raise ValueError."""
    able = [party.peer for party in parties if party.may_reduce]
    trainers = [party.peer for party in parties if party.may_reduce and party.is_volunteer]
    return equal(parties, down_bytes, limits, trainers or able)


def parameter_server(server: PeerId) -> Solve:
    """Return a plan that reduces everything at one place, or at the first of the others while it is away."""

    def solve(parties: Sequence[Party], down_bytes: float, limits: Limits) -> Shares:
        able = sorted(party.peer for party in parties if party.may_reduce)
        return equal(parties, down_bytes, limits, [server] if server in able else able[:1])

    return solve


def equal(parties: Sequence[Party], down_bytes: float, limits: Limits, chosen: Sequence[PeerId]) -> Shares:
    """Return equal shares for those chosen, with the duration and the limits on known links."""
    if not chosen:
        raise ValueError("nobody may reduce")
    reducers = tuple(sorted(party.peer for party in parties if party.may_reduce))
    shares = tuple(1.0 / len(chosen) if peer in chosen else 0.0 for peer in reducers)
    return judged(Shares(reducers, shares, 0.0), parties, down_bytes, limits)


def best_connected(setup: Setup, rates: Rates) -> str:
    """Return the name of the relay, or else the reachable peer, whose slower direction carries most."""
    able = [peer for peer in setup.peers if peer.reachable]
    relays = [peer for peer in able if peer.role == "relay"]
    return max(relays or able, key=lambda peer: min(rates.up[peer.name], rates.down[peer.name])).name


@contextmanager
def planned_by(solve: Solve | None) -> Iterator[None]:
    """Let this process's coordinators plan this way within the block; None: as shipped."""
    if solve is None:
        yield
        return
    with mock.patch.object(planning, "solve", solve):
        yield
