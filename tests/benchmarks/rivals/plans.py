"""Rivals that are our own engine with another plan: equal shares for all, and one parameter server.

The shipped coordinator calls `solve` to get shares. Within `planned_by`, another function replaces `solve`. Nothing
else differs.
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
    """Return equal shares for reachable trainers. If no trainer is reachable, return equal shares for all possible
    reducers. Raise ValueError if no peer may reduce."""
    able = [party.peer for party in parties if party.may_reduce]
    trainers = [party.peer for party in parties if party.may_reduce and party.is_volunteer]
    return equal(parties, down_bytes, limits, trainers or able)


def parameter_server(server: PeerId) -> Solve:
    """Return a planner that lets `server` reduce everything. If `server` is away, the first possible reducer takes its
    place."""

    def solve(parties: Sequence[Party], down_bytes: float, limits: Limits) -> Shares:
        able = sorted(party.peer for party in parties if party.may_reduce)
        return equal(parties, down_bytes, limits, [server] if server in able else able[:1])

    return solve


def equal(parties: Sequence[Party], down_bytes: float, limits: Limits, chosen: Sequence[PeerId]) -> Shares:
    """Return equal shares for the chosen peers, with the duration that known links allow."""
    if not chosen:
        raise ValueError("nobody may reduce")
    reducers = tuple(sorted(party.peer for party in parties if party.may_reduce))
    shares = tuple(1.0 / len(chosen) if peer in chosen else 0.0 for peer in reducers)
    return judged(Shares(reducers, shares, 0.0), parties, down_bytes, limits)


def best_connected(setup: Setup, rates: Rates) -> str:
    """Return the name of the best-connected relay, or of the best-connected reachable peer if there is no relay.
    Compare links by their slower direction.
    """
    able = [peer for peer in setup.peers if peer.reachable]
    relays = [peer for peer in able if peer.role == "relay"]
    return max(relays or able, key=lambda peer: min(rates.up[peer.name], rates.down[peer.name])).name


@contextmanager
def planned_by(solve: Solve | None) -> Iterator[None]:
    """Make this process's coordinators plan with `solve` until the block ends, or as shipped if `solve` is None."""
    if solve is None:
        yield
        return
    with mock.patch.object(planning, "solve", solve):
        yield
