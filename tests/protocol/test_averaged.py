"""The number of bytes averaged by reducers is exact: it equals a chunk-by-chunk count."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, ChunkRange, Contribution, Record, Scalars, SpanEntry, whole
from peer_agent.protocol.recipe import Codec

ANN, BOB = PeerId("a" * 32), PeerId("b" * 32)
CODECS: tuple[Codec, ...] = ("fp32", "fp16", "int8", "int4")
SCALARS = Scalars(learning_rate=1.0, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=1.0)


def record(
    grid: Grid, spans: list[tuple[PeerId, int, int]], ranges: list[list[tuple[int, int]]], codec: Codec
) -> Record:
    facts: dict[str, Any] = {
        "run": RunId("aa" * 16),
        **dict.fromkeys(("index", "step", "fence", "attempt", "round"), 1),
        "previous": GENESIS,
        "elements": grid.elements,
        "chunk_elements": grid.chunk_elements,
        "codec": "fp32",
        "scalars": SCALARS,
        "loss": 1.0,
        **dict.fromkeys(("tokens", "samples"), 1),
        "exact": False,
        "spans": tuple(
            SpanEntry(span=i, first=first, stop=stop, attempt=1, reducer=who, root="00" * 32, sum_squares=1.0)
            for i, (who, first, stop) in enumerate(spans)
        ),
    }
    return whole(contributions=tuple(contribution(i, parts, codec) for i, parts in enumerate(ranges)), **facts)


def contribution(slot: int, ranges: list[tuple[int, int]], codec: Codec) -> Contribution:
    given: dict[str, Any] = dict.fromkeys(("weight", "credit", "samples", "tokens"), 1)
    included = tuple(ChunkRange(first, stop) for first, stop in ranges)
    name = AccumulatorId(f"{slot:032x}")
    return Contribution(
        peer=PeerId(name),
        person="p",
        machine="m",
        slot=slot,
        accumulator=name,
        units=(),
        included=included,
        codec=codec,
        **given,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Grid, list[tuple[PeerId, int, int]], list[list[tuple[int, int]]]]:
    grid = Grid(draw(st.integers(1, 90)), draw(st.integers(1, 9)))
    cut = draw(st.integers(0, grid.chunks))
    spans = [(who, *part) for who, part in ((ANN, (0, cut)), (BOB, (cut, grid.chunks))) if part[0] < part[1]]
    edges = st.lists(st.integers(0, grid.chunks), min_size=4, max_size=4, unique=True).map(sorted)
    one = st.tuples(st.integers(0, grid.chunks), st.integers(0, grid.chunks)).map(lambda pair: [tuple(sorted(pair))])
    two = edges.map(lambda e: [(e[0], e[1]), (e[2], e[3])]) if grid.chunks > 3 else one
    ranges = draw(st.lists(st.one_of(one, two), max_size=4))
    return grid, spans, ranges  # type: ignore[return-value]


@given(cases(), st.sampled_from(CODECS))
def test_it_is_what_each_chunk_counted_by_itself_would_give(case: Any, codec: Codec) -> None:
    grid, spans, ranges = case
    expected = {who: 0 for who, *_ in spans}
    for who, first, stop in spans:
        for chunk in range(first, stop):
            taken = sum(a <= chunk < b for parts in ranges for a, b in parts)
            expected[who] += taken * encoded_size(codec, grid.length(chunk))
    assert averaged_bytes(record(grid, spans, ranges, codec)) == expected


@pytest.mark.parametrize(("codec", "size"), [("fp32", 4 * 25), ("fp16", 2 * 25 + 3 * 2), ("int8", 25 + 3 * 4)])
def test_two_contributions_in_all_of_three_chunks(codec: Codec, size: int) -> None:
    everywhere = [[(0, 3)], [(0, 3)]]
    assert averaged_bytes(record(Grid(25, 10), [(ANN, 0, 3)], everywhere, codec)) == {ANN: 2 * size}


def test_each_contribution_counts_in_its_own_codec() -> None:
    mixed = record(Grid(25, 10), [(ANN, 0, 3)], [[(0, 3)], [(0, 2)]], "fp16")
    small = replace(mixed.contributions[1], codec="int8")
    given = averaged_bytes(replace(mixed, contributions=(mixed.contributions[0], small)))
    assert given == {ANN: 2 * 25 + 3 * 2 + 20 + 2 * 4}


def test_who_reduced_two_spans_is_credited_with_both() -> None:
    spans = [(ANN, 0, 1), (BOB, 1, 2), (ANN, 2, 3)]
    assert averaged_bytes(record(Grid(30, 10), spans, [[(0, 3)]], "fp32")) == {ANN: 80, BOB: 40}
