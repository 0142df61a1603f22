"""Settled ranges cover exactly the samples of the units, whatever the order in which the units arrive."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol.log.records import Unit
from runs.ledger.records import Ranges, add_committed, add_range, overlaps, settled_units
from runs.models import Coverage, Run
from tests.runs.factories import opened

PARTS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=30)


def merged(parts: list[tuple[int, int]]) -> Ranges:
    ranges: Ranges = []
    for start, length in parts:
        add_range(ranges, start, start + length)
    return ranges


def samples(parts: list[tuple[int, int]]) -> set[int]:
    return {sample for start, length in parts for sample in range(start, start + length)}


@given(PARTS)
def test_ranges_hold_the_samples_and_neither_overlap_nor_touch(parts: list[tuple[int, int]]) -> None:
    ranges = merged(parts)
    assert {sample for start, stop in ranges for sample in range(start, stop)} == samples(parts)
    edges = [edge for known in ranges for edge in known]
    assert edges == sorted(set(edges))


@given(PARTS, st.integers(0, 50), st.integers(1, 6))
def test_what_shares_a_sample_overlaps(parts: list[tuple[int, int]], start: int, length: int) -> None:
    assert overlaps(merged(parts), start, start + length) == bool(samples(parts) & set(range(start, start + length)))


def test_a_unit_looks_at_few_of_thousands_of_ranges() -> None:
    looked: list[int] = []

    class Watched(list[int]):
        def __getitem__(self, place: int) -> int:  # type: ignore[override]
            looked.append(place)
            return super().__getitem__(place)

    ranges: Ranges = [Watched([4 * place, 4 * place + 2]) for place in range(5000)]
    add_range(ranges, 10_002, 10_004)
    assert ranges[2500] == [10_000, 10_006]
    assert len(ranges) == 4999
    assert len(looked) < 40


def test_only_the_rows_of_its_own_places_are_written(run: Run) -> None:
    add_committed(run, [Unit(0, 0, 0, 4), Unit(1, 2, 8, 12)])
    run.coverage.filter(epoch=0, shard=0).update(ranges=[[0, 5]])  # a change that writing the old row back would lose
    run.coverage.create(epoch=0, shard=2, ranges=[[1, 2]])
    add_committed(run, [Unit(1, 2, 4, 8)])
    assert list(settled_units(run)) == [Unit(0, 0, 0, 5), Unit(0, 2, 1, 2), Unit(1, 2, 4, 12)]


def test_of_two_places_the_other_two_corners_are_not_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    add_committed(run, [Unit(0, 0, 0, 4), Unit(1, 1, 0, 4)])
    written: list[Coverage] = []
    write = Coverage.objects.bulk_create

    def noted(rows: list[Coverage], **how: Any) -> list[Coverage]:
        written.extend(rows)
        return write(rows, **how)

    monkeypatch.setattr(Coverage.objects, "bulk_create", noted)
    add_committed(run, [Unit(0, 1, 0, 4), Unit(1, 0, 0, 4)])
    assert sorted((row.epoch, row.shard) for row in written) == [(0, 1), (1, 0)]


def test_runs_do_not_share_rows(run: Run) -> None:
    other = opened(run.organizer, slug="other")
    add_committed(run, [Unit(0, 0, 0, 4)])
    add_committed(other, [Unit(0, 0, 4, 8)])
    assert (list(settled_units(run)), list(settled_units(other))) == ([Unit(0, 0, 0, 4)], [Unit(0, 0, 4, 8)])
