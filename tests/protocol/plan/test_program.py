"""The rows of the linear program equal the sums over all transfers, whatever the shares."""

import numpy as np
import pytest
from msgspec.structs import replace

from peer_agent.protocol.plan import Kind, Limits, Party
from peer_agent.protocol.plan import program as module
from peer_agent.protocol.plan.program import Program, program_of
from tests.protocol.plan import by_hand
from tests.protocol.plan.instances import auxiliary, coupled, keeper, peer, trainer, trainers


def by_link(program: Program, shares: np.ndarray, limits: Limits, parties: list[Party]) -> dict[by_hand.Link, float]:
    home = {party.peer: party.household for party in parties}
    named: dict[by_hand.Link, float] = {}
    for row, time in zip(program.rows, program.times(shares), strict=True):
        whose: object = row.peers if row.kind is Kind.PAIR else row.peers[0]
        if row.kind is Kind.HOUSEHOLD:
            assert row.peers == tuple(sorted(p.peer for p in parties if p.household == home[row.peers[0]]))
            whose = home[row.peers[0]]
        named[str(row.kind), whose] = time
    return named


@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_what_its_link_carries(seed: int) -> None:
    parties, down, limits = coupled(seed, 12)
    program = program_of(parties, down, limits)
    shares = np.random.default_rng(seed).dirichlet(np.ones(len(program.reducers)))
    reducers, table = by_hand.seconds(parties, down, limits)
    assert list(program.reducers) == reducers
    found = by_link(program, shares, limits, parties)
    for link, time in zip(by_hand.capacities(parties, limits), table @ shares, strict=True):
        assert found.pop(link, 0.0) == pytest.approx(time, rel=1e-9), link
    assert found == {}


def test_pair_has_a_row_only_if_limited_and_carrying_something() -> None:
    parties = [trainer(0, 1.0), replace(trainer(1, 1.0), may_reduce=False), auxiliary(2, 1.0), keeper(3, 1.0)]
    everybody = {(a.peer, b.peer): 1.0 for a in parties for b in parties}
    strangers = {(peer(0), peer(9)): 1.0, (peer(9), peer(0)): 1.0}
    program = program_of(parties, 1.0, Limits(pairs=everybody | strangers | {(peer(0), peer(3)): 0.0}))
    pairs = [tuple(int(who, 16) for who in row.peers) for row in program.rows if row.kind is Kind.PAIR]
    # No gradient goes to a peer that does not reduce, and no average to an auxiliary.
    assert pairs == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 3)]
    assert not [row for row in program_of(parties, 1.0).rows if row.kind is Kind.PAIR]


def test_who_is_not_waited_for_is_sent_to_and_has_no_row() -> None:
    late = replace(trainer(1, 1.0), up_bytes=0.0, is_awaited=False, may_reduce=False)
    rows = {row: i for i, row in enumerate(program_of([trainer(0, 1.0), late], 1.0).rows)}
    program = program_of([trainer(0, 1.0), late], 1.0)
    times = {row: program.times(np.ones(1))[i] for row, i in rows.items()}
    assert times[module.Row(Kind.UP, (peer(0),))] == 1.0
    assert times[module.Row(Kind.DOWN, (peer(1),))] == 0.0


def test_limits_that_are_no_numbers_are_refused() -> None:
    for wrong in (np.nan, np.inf, -1.0, 1e-300):
        for limits in (Limits(pairs={(peer(0), peer(1)): wrong}), Limits(households={"one": wrong})):
            with pytest.raises(ValueError, match="finite"):
                program_of(trainers(2, 1.0), 1.0, limits)
    with pytest.raises(ValueError, match="finite"):
        program_of(trainers(2, 1.0), np.inf)


def test_entries_grow_with_the_rows() -> None:
    program = program_of(trainers(50, 1.0), 1.0)
    assert (len(program.rows), len(program.slope)) == (100, 100)
    assert not [values for values in (program.row, program.share, program.slope) if values.size > 100]


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAIRS", 2)
    pairs = {(peer(0), peer(1)): 1.0, (peer(1), peer(0)): 1.0}
    program_of(trainers(3, 1.0), 1.0, Limits(pairs=pairs))
    with pytest.raises(ValueError, match="pairs"):
        program_of(trainers(3, 1.0), 1.0, Limits(pairs=pairs, forwarded={(peer(0), peer(2)): peer(1)}))
