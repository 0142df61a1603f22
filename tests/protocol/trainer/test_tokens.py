"""Token counts stored as ranges of chunks equal a plain list of counts per chunk."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.messages import Weight
from peer_agent.protocol.trainer.tokens import added, cleared, highest, nothing

CHUNKS = 9
SPANS = st.lists(st.tuples(st.integers(0, CHUNKS), st.integers(0, CHUNKS)).map(lambda pair: (min(pair), max(pair))))


@given(st.lists(st.tuples(st.integers(0, 50), SPANS)))
def test_ranges_say_what_a_list_would(story: list[tuple[int, list[tuple[int, int]]]]) -> None:
    ranges, by_chunk = nothing(CHUNKS), [0] * CHUNKS
    for tokens, spans in story:
        ranges = cleared(added(ranges, tokens), spans)
        by_chunk = [tokens + count for count in by_chunk]
        for first, stop in spans:
            by_chunk[first:stop] = [0] * (stop - first)
        assert [part.tokens for part in ranges for _ in range(part.first, part.stop)] == by_chunk
        assert highest(ranges) == max(by_chunk)
        assert all(part.first < part.stop for part in ranges)
        assert all(a.stop == b.first and a.tokens != b.tokens for a, b in itertools.pairwise(ranges))


def test_a_grid_that_is_not_known_yet_has_no_ranges() -> None:
    assert nothing(0) == ()
    assert highest(()) == 0
    assert added((), 5) == cleared((), [(0, 3)]) == ()


def test_chunks_in_one_piece_are_one_range() -> None:
    assert cleared((Weight(0, 4, 7), Weight(4, 9, 3)), [(2, 6)]) == (Weight(0, 2, 7), Weight(2, 6, 0), Weight(6, 9, 3))
