"""The chunk grid of a vector."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.grid import ALIGNMENT, LARGEST, SMALLEST, grid_of


@given(st.integers(1, 10**10))
def test_chunks_tile_the_vector_within_their_bounds(elements: int) -> None:
    grid = grid_of(elements)
    assert SMALLEST <= grid.chunk_elements <= LARGEST
    assert grid.chunk_elements % ALIGNMENT == 0, "a block of a codec never straddles two chunks"
    assert (grid.chunks - 1) * grid.chunk_elements < elements <= grid.chunks * grid.chunk_elements
    assert grid.bounds(grid.chunks - 1)[1] == elements
    assert grid.length(grid.chunks - 1) == elements - (grid.chunks - 1) * grid.chunk_elements


@given(st.integers(1, 3_000_000))
def test_each_element_is_in_one_chunk(elements: int) -> None:
    grid = grid_of(elements)
    position = 0
    for chunk in grid:
        start, stop = grid.bounds(chunk)
        assert start == position < stop
        assert grid.length(chunk) == stop - start
        position = stop
    assert position == elements


@pytest.mark.parametrize(
    ("elements", "chunk", "chunks"),
    [(1, 16_384, 1), (16_385, 16_384, 2), (124_000_000, 61_440, 2019), (10**9, 262_144, 3815)],
)
def test_golden_grids(elements: int, chunk: int, chunks: int) -> None:
    grid = grid_of(elements)
    assert (grid.chunk_elements, grid.chunks) == (chunk, chunks)
