"""The rivals that are our own engine with another plan: an equal butterfly, and one parameter server.

The shipped coordinator asks `solve` for shares; within `planned_by` something else answers. Nothing else differs.
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
    """Equal shares for the trainers that are reached; where there are none, for whoever is. Raises ValueError."""
    able = [party.peer for party in parties if party.may_reduce]
    trainers = [party.peer for party in parties if party.may_reduce and party.is_volunteer]
    return equal(parties, down_bytes, limits, trainers or able)


def parameter_server(server: PeerId) -> Solve:
    """Everything is reduced at one place; while it is not there, by the first of the others."""

    def solve(parties: Sequence[Party], down_bytes: float, limits: Limits) -> Shares:
        able = sorted(party.peer for party in parties if party.may_reduce)
        return equal(parties, down_bytes, limits, [server] if server in able else able[:1])

    return solve


def equal(parties: Sequence[Party], down_bytes: float, limits: Limits, chosen: Sequence[PeerId]) -> Shares:
    """Equal shares for those chosen, the time that takes on what is known of the links, and which of them take it."""
    if not chosen:
        raise ValueError("nobody may reduce")
    reducers = tuple(sorted(party.peer for party in parties if party.may_reduce))
    shares = tuple(1.0 / len(chosen) if peer in chosen else 0.0 for peer in reducers)
    return judged(Shares(reducers, shares, 0.0), parties, down_bytes, limits)


def best_connected(setup: Setup, rates: Rates) -> str:
    """The relay, or else the peer that others can dial, whose slower direction carries most; its name."""
    able = [peer for peer in setup.peers if peer.reachable]
    relays = [peer for peer in able if peer.role == "relay"]
    return max(relays or able, key=lambda peer: min(rates.up[peer.name], rates.down[peer.name])).name


@contextmanager
def planned_by(solve: Solve | None) -> Iterator[None]:
    """Coordinators of this process plan so within the block; None: as they do."""
    if solve is None:
        yield
        return
    with mock.patch.object(planning, "solve", solve):
        yield
