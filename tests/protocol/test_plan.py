"""The plan against the share program itself (rule 26), and spans that tile the grid whatever happens."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import PlannedSpan
from peer_agent.protocol.plan import Participant, Reducer, Shares, largest_remainder, shares_of, spans_of


def by_program(
    reducers: list[Reducer], contributors: list[Participant], receivers: list[Participant], down: float
) -> float:
    """T* of rule 26's program over (x_1 … x_n, T), where only relays reduce and none of them sends or keeps.

    A relay that is not measured counts as the slowest that is; a member's unmeasured link binds nothing.
    """
    arriving, leaving = sum(member.up_bytes for member in contributors), down * len(receivers)
    times = {
        r.peer: max(arriving / r.download_bps, leaving / r.upload_bps)
        for r in reducers
        if r.upload_bps and r.download_bps
    }
    count = len(reducers)
    rows, bounds = [], []

    def row(on_share: dict[int, float], constant: float, capacity: float) -> None:
        line = np.zeros(count + 1)
        for j, slope in on_share.items():
            line[j] = slope
        line[count] = -capacity
        rows.append(line / capacity)
        bounds.append(-constant / capacity)

    for j, r in enumerate(reducers):
        if r.peer in times:
            row({j: leaving}, 0.0, r.upload_bps)
            row({j: arriving}, 0.0, r.download_bps)
        elif times:
            row({j: max(times.values())}, 0.0, 1.0)
    for member in contributors:
        if member.upload_bps:
            row({}, member.up_bytes, member.upload_bps)
    for member in receivers:
        if member.download_bps:
            row({}, down, member.download_bps)
    cost = np.zeros(count + 1)
    cost[count] = 1.0
    sums = np.array([[1.0] * count + [0.0]])
    answer = linprog(cost, A_ub=np.array(rows), b_ub=np.array(bounds), A_eq=sums, b_eq=[1.0], method="highs")
    assert answer.status == 0, answer.message
    return float(answer.x[count])


def instance(seed: int) -> tuple[list[Reducer], list[Participant], list[Participant], float]:
    """Relays and members of very different links, some of them not measured."""
    chance = random.Random(seed)

    def bps(unmeasured: float) -> float:
        return 0.0 if chance.random() < unmeasured else 10 ** chance.uniform(5, 9)

    relays = [Reducer(PeerId(f"{i:032x}"), bps(0.2), bps(0.2)) for i in range(chance.randint(1, 8))]
    size = 10 ** chance.uniform(5, 9)
    members = [
        Participant(size * chance.choice((1, 0.5, 0.25)), bps(0.3), bps(0.3)) for _ in range(chance.randint(1, 20))
    ]
    contributors = members[: chance.randint(1, len(members))]
    return relays, contributors, members, size


def test_the_closed_form_is_the_optimum_of_the_program_on_300_random_instances() -> None:
    for seed in range(300):
        relays, contributors, receivers, down = instance(seed)
        shares = shares_of(relays, contributors, receivers, down)
        assert sum(shares.shares) == pytest.approx(1.0, abs=1e-12)
        assert all(share > 0 for share in shares.shares)
        if not any(r.upload_bps and r.download_bps for r in relays):
            assert len(set(shares.shares)) == 1
            continue
        best = by_program(relays, contributors, receivers, down)
        assert shares.duration_s == pytest.approx(best, rel=1e-9), seed


def test_the_shares_themselves_are_feasible_in_that_time() -> None:
    for seed in range(300):
        relays, contributors, receivers, down = instance(seed)
        shares = shares_of(relays, contributors, receivers, down)
        arriving = sum(member.up_bytes for member in contributors)
        for r, share in zip(relays, shares.shares, strict=True):
            if r.upload_bps and r.download_bps:
                assert share * arriving <= r.download_bps * shares.duration_s * (1 + 1e-9)
                assert share * down * len(receivers) <= r.upload_bps * shares.duration_s * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_equal_relays_get_equal_shares(count: int) -> None:
    relays = [Reducer(PeerId(f"{i:032x}"), 1e6, 1e6) for i in range(count)]
    members = [Participant(4e6, 1e9, 1e9)] * 4
    shares = shares_of(relays, members, members, 4e6)
    assert shares.shares == pytest.approx((1 / count,) * count)
    assert shares.duration_s == pytest.approx(16 / count)


def test_no_plan_beats_the_slowest_participant() -> None:
    relays = [Reducer(PeerId("a" * 32), 1e9, 1e9)]
    assert shares_of(relays, [Participant(1e6, 1e5, 1e9)], [Participant(1e6, 1e5, 1e9)], 1e6).duration_s == 10.0
    assert shares_of(relays, [Participant(1e6, 1e9, 1e9)], [Participant(1e6, 1e9, 5e4)], 1e6).duration_s == 20.0


def test_nothing_measured_gives_equal_shares_and_no_duration() -> None:
    relays = [Reducer(PeerId(f"{i:032x}"), 0, 0) for i in range(3)]
    assert shares_of(relays, [Participant(1.0, 0, 0)], [Participant(1.0, 0, 0)], 1.0) == Shares((1 / 3,) * 3, 0.0)


def test_somebody_must_reduce() -> None:
    with pytest.raises(ValueError, match="nobody"):
        shares_of([], [], [], 1.0)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(0, 100_000))
def test_largest_remainder_gives_whole_numbers_next_to_the_exact_ones(shares: list[float], total: int) -> None:
    counts = largest_remainder(shares, total)
    assert sum(counts) == total
    whole = sum(shares)
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - share * total / whole) < 1 + 1e-6


def test_ties_go_to_the_earlier_one() -> None:
    assert largest_remainder([1.0, 1.0, 1.0], 4) == [2, 1, 1]
    assert largest_remainder([1.0, 1.0, 1.0], 5) == [2, 2, 1]


grids = st.integers(1, 3000 * 16 * 1024).map(grid_of)


@st.composite
def _holes(draw: st.DrawFn, chunks: int) -> list[tuple[int, int]]:
    edges = sorted(draw(st.sets(st.integers(0, chunks), max_size=8)))
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]


def _check_tiling(spans: list[PlannedSpan], missing: list[tuple[int, int]]) -> None:
    dealt = sorted(chunk for span in spans for chunk in range(span.first, span.stop))
    assert dealt == [chunk for first, stop in missing for chunk in range(first, stop)]
    assert all(span.stop > span.first for span in spans)


@given(st.data(), grids, st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=9), st.booleans())
def test_spans_tile_what_is_missing_and_are_alike_everywhere(
    data: st.DataObject, grid: Grid, shares: list[float], is_replan: bool
) -> None:
    missing = data.draw(_holes(grid.chunks)) if is_replan else [(0, grid.chunks)]
    relays = [Reducer(PeerId(f"{i:032x}"), 0, 0) for i in range(len(shares))]
    spans = spans_of(relays, shares, missing, grid, attempt=3, first_span=7)
    _check_tiling(spans, missing)
    assert [span.span for span in spans] == list(range(7, 7 + len(spans)))
    assert {span.attempt for span in spans} <= {3}
    shuffled = data.draw(st.permutations(list(zip(relays, shares, strict=True))))
    again = spans_of([r for r, _ in shuffled], [s for _, s in shuffled], missing, grid, attempt=3, first_span=7)
    if len(set(shares)) == len(shares):  # else a tie goes to whom the coordinator lists first, which is by id
        assert again == spans


def test_a_share_is_cut_in_spans_of_a_64th_or_a_mebibyte() -> None:
    relay = [Reducer(PeerId("a" * 32), 0, 0)]
    small, large = grid_of(1_000_000), grid_of(500_000_000)
    assert {span.stop - span.first for span in spans_of(relay, [1.0], [(0, small.chunks)], small, attempt=1)[:-1]} == {
        16
    }
    spans = spans_of(relay, [1.0], [(0, large.chunks)], large, attempt=1)
    assert 60 <= len(spans) <= 66
