"""Credit is exact in token-elements, and what is shown of it sums."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.coordinator.workers.credit import credit_of, rounded
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included
from peer_agent.protocol.messages import Slot, Weight


def slot(*weights: Weight) -> Slot:
    return Slot(peer=PeerId("a" * 32), weights=weights, root=bytes(32), norm=1.0, codec="fp32")


def cuts(chunks: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """The chunks in ranges."""
    inner = st.sets(st.integers(1, chunks - 1)) if chunks > 1 else st.just(set())
    return inner.map(lambda edges: list(zip([0, *sorted(edges)], [*sorted(edges), chunks], strict=True)))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Grid, list[Slot], list[Included]]:
    grid = Grid(draw(st.integers(1, 200)), draw(st.integers(1, 30)))
    slots = [
        slot(*(Weight(a, b, draw(st.integers(0, 1000))) for a, b in draw(cuts(grid.chunks))))
        for _ in range(draw(st.integers(1, 5)))
    ]
    every = st.sets(st.integers(0, len(slots) - 1)).map(lambda chosen: tuple(sorted(chosen)))
    return grid, slots, [Included(a, b, draw(every)) for a, b in draw(cuts(grid.chunks))]


@given(rounds())
def test_credit_is_elements_times_tokens_over_the_included(case: tuple[Grid, list[Slot], list[Included]]) -> None:
    grid, slots, included = case
    expected = dict.fromkeys(range(len(slots)), 0)
    for element in range(grid.elements):
        chunk = element // grid.chunk_elements
        part = next(part for part in included if part.first <= chunk < part.stop)
        for number in part.slots:
            weight = next(w for w in slots[number].weights if w.first <= chunk < w.stop)
            expected[number] += weight.tokens
    assert credit_of(slots, included, grid) == expected


def test_the_last_chunk_counts_its_own_length() -> None:
    grid = Grid(10, 4)
    assert credit_of([slot(Weight(0, 3, 5))], [Included(2, 3, (0,))], grid) == {0: 2 * 5}


@given(st.lists(st.fractions(0, 10_000), max_size=20))
def test_rounding_keeps_the_sum_and_moves_nothing_by_one_or_more(values: list[Fraction]) -> None:
    exact = dict(enumerate(values))
    whole = rounded(exact)
    assert sum(whole.values()) == round(sum(values, Fraction(0)))
    assert all(abs(whole[i] - exact[i]) < 1 for i in exact)
    assert all(whole[i] == exact[i] for i in exact if exact[i] == 0), "nobody is credited for nothing"


def test_ties_go_to_the_lower_slot() -> None:
    thirds = {i: Fraction(4, 3) for i in range(3)}
    assert rounded(thirds) == {0: 2, 1: 1, 2: 1}
