"""Shares become whole chunks that always tile the grid, identically on every machine (rules 25 and 29)."""

from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.grid import Grid, grid_of
from peer_agent.protocol.messages import PlannedSpan
from peer_agent.protocol.plan import largest_remainder, spans_of
from tests.protocol.plan.instances import peer


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.integers(0, 100_000))
def test_largest_remainder_gives_whole_numbers_near_exact_ones(shares: list[float], total: int) -> None:
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
    relays = [peer(i) for i in range(len(shares))]
    spans = spans_of(relays, shares, missing, grid, attempt=3, first_span=7)
    _check_tiling(spans, missing)
    assert [span.span for span in spans] == list(range(7, 7 + len(spans)))
    assert {span.attempt for span in spans} <= {3}
    shuffled = data.draw(st.permutations(list(zip(relays, shares, strict=True))))
    again = spans_of([r for r, _ in shuffled], [s for _, s in shuffled], missing, grid, attempt=3, first_span=7)
    # otherwise a tie goes to the first in the coordinator's list, which is sorted by id
    if len(set(shares)) == len(shares):
        assert again == spans


def test_a_share_is_cut_in_spans_of_a_64th_or_a_mebibyte() -> None:
    relay = [peer(7)]
    small, large = grid_of(1_000_000), grid_of(500_000_000)
    assert {span.stop - span.first for span in spans_of(relay, [1.0], [(0, small.chunks)], small, attempt=1)[:-1]} == {
        16
    }
    spans = spans_of(relay, [1.0], [(0, large.chunks)], large, attempt=1)
    assert 60 <= len(spans) <= 66


def test_reducers_have_the_vector_in_the_order_of_their_ids() -> None:
    grid = grid_of(10_000_000)
    spans = spans_of([peer(2), peer(1)], [0.9, 0.1], [(0, grid.chunks)], grid, attempt=1)
    assert [span.reducer for span in (spans[0], spans[-1])] == [peer(1), peer(2)]
    assert [span.first for span in spans] == sorted(span.first for span in spans)
