"""What somebody has reached follows from sums by day."""

import pytest

from runs.people import Milestone, reached


def names(by_day: dict[int, int], bytes_averaged: int = 0, finished: int = 0) -> list[str]:
    return [each.name for each in reached(by_day, bytes_averaged=bytes_averaged, finished=finished).milestones]


def test_whoever_gave_nothing_has_none_and_nothing_is_missing() -> None:
    assert reached({}, bytes_averaged=0, finished=0) == ([], "")


@pytest.mark.parametrize(
    ("samples", "name", "ahead"),
    [
        (1, "First sample", "99 to 100 samples"),
        (99, "First sample", "1 to 100 samples"),
        (100, "100 samples", "900 to 1,000 samples"),
        (1_234_567, "1,000,000 samples", "8,765,433 to 10,000,000 samples"),
        (10**9, "100,000,000 samples", ""),
    ],
)
def test_the_highest_number_of_samples_counts(samples: int, name: str, ahead: str) -> None:
    found = reached({3: samples}, bytes_averaged=0, finished=0)
    assert found == ([Milestone(name, 3)], ahead)


def test_it_was_reached_on_the_day_that_made_it_full() -> None:
    found = reached({9: 60, 7: 60, 11: 800}, bytes_averaged=0, finished=0)
    assert found.milestones == [Milestone("100 samples", 9)]


def test_days_count_wherever_they_lie() -> None:
    assert reached(dict.fromkeys(range(0, 60, 2), 10), bytes_averaged=0, finished=0).milestones == [
        Milestone("100 samples", 18),
        Milestone("30 days", 58),
    ]
    assert names(dict.fromkeys(range(6), 1)) == ["First sample"]


def test_bytes_and_finished_runs_are_milestones_too() -> None:
    assert names({}, bytes_averaged=10**9 - 1) == []
    assert names({}, bytes_averaged=150 * 10**9, finished=1) == ["A finished run", "100 GB averaged"]
    assert names({}, finished=4) == ["3 finished runs"]
