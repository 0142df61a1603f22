"""A person's contributions. A reader sees only contributions to runs that are visible to that reader."""

from collections.abc import Sequence

import pytest

from accounts.models import Person
from runs.models import AveragedTotal, Run
from runs.people import Milestone, contributions, ledger_of, reached, runs_shown
from tests.runs.factories import Owned, committed, opened, owned


@pytest.fixture
def runs(organizer: Person, laptop: Owned) -> dict[str, Run]:
    """Return a run of each visibility to which the volunteer contributed, and one without contributions."""
    made = {}
    for place, visibility in enumerate(("public", "unlisted", "private"), 1):
        made[visibility] = opened(organizer, slug=visibility, visibility=visibility)
        committed(made[visibility], (laptop.machine, 10**place), (owned(organizer, "lab").machine, 10))
    made["other"] = opened(organizer, slug="other")
    return made


def averaged(run: Run, whose: Owned, size: int) -> None:
    machine = whose.machine
    AveragedTotal.objects.create(run=run, machine=machine, person=machine.person, bytes_averaged=size)


def slugs(person: Person, viewer: Person | None) -> list[str]:
    return [each.run.slug for each in contributions(person, viewer).runs]


def test_others_see_what_is_on_their_lists(
    volunteer: Person, stranger: Person, organizer: Person, runs: dict[str, Run]
) -> None:
    assert slugs(volunteer, None) == slugs(volunteer, stranger) == ["public"]
    assert slugs(volunteer, organizer) == ["private", "unlisted", "public"], "their own runs"
    assert slugs(volunteer, volunteer) == ["unlisted", "public"], "no longer a member of the third"
    assert set(runs_shown(volunteer, None)) == {runs["public"], runs["other"]}


def test_sums_are_those_of_the_runs_that_are_told(volunteer: Person, runs: dict[str, Run], laptop: Owned) -> None:
    committed(runs["public"], (laptop.machine, 5), (owned(volunteer, "desk").machine, 5))
    averaged(runs["public"], laptop, 2_000_000_000)
    found = contributions(volunteer, None)
    (given,) = found.runs
    assert (given.samples, given.steps) == (20, 2)
    assert given.part == pytest.approx(20 / 30)
    assert (found.samples, found.bytes_averaged, sum(found.by_day.values())) == (20, 2_000_000_000, 20)
    assert [each.name for each in found.reached.milestones] == ["First sample", "1 GB averaged"]
    assert contributions(volunteer, volunteer).samples == 120


def test_whoever_averaged_and_computed_nothing_has_a_row(
    volunteer: Person, runs: dict[str, Run], laptop: Owned
) -> None:
    averaged(runs["other"], laptop, 7)
    (row,) = [each for each in contributions(volunteer, None).runs if each.run == runs["other"]]
    assert (row.samples, row.bytes_averaged, row.part) == (0, 7, 0.0)


def test_each_round_is_an_entry_of_the_log(volunteer: Person, runs: dict[str, Run], laptop: Owned) -> None:
    entry = committed(runs["public"], (laptop.machine, 5), (owned(volunteer, "desk").machine, 6))
    rows = list(ledger_of(volunteer, runs["public"]))
    assert [(row.step, row.samples, row.machine.name) for row in rows] == [
        (2, 6, "desk"),
        (2, 5, "laptop"),
        (1, 10, "laptop"),
    ]
    assert rows[0].entry == entry


def names(by_day: dict[int, int], bytes_averaged: int = 0, finished: Sequence[int] = ()) -> list[str]:
    return [each.name for each in reached(by_day, bytes_averaged=bytes_averaged, finished=finished).milestones]


def test_whoever_gave_nothing_has_none_and_nothing_is_missing() -> None:
    assert reached({}, bytes_averaged=0, finished=()) == ([], "")


@pytest.mark.parametrize(
    ("samples", "name", "ahead"),
    [
        (1, "First sample", "100 samples (99 to go)"),
        (99, "First sample", "100 samples (1 to go)"),
        (100, "100 samples", "1,000 samples (900 to go)"),
        (1_234_567, "1,000,000 samples", "10,000,000 samples (8,765,433 to go)"),
        (10**9, "100,000,000 samples", ""),
    ],
)
def test_the_highest_number_of_samples_counts(samples: int, name: str, ahead: str) -> None:
    found = reached({3: samples}, bytes_averaged=0, finished=())
    assert found == ([Milestone(name, 3)], ahead)


def test_it_was_reached_on_the_day_that_made_it_full() -> None:
    found = reached({9: 60, 7: 60, 11: 800}, bytes_averaged=0, finished=())
    assert found.milestones == [Milestone("100 samples", 9)]


def test_days_count_wherever_they_lie() -> None:
    assert reached(dict.fromkeys(range(0, 60, 2), 10), bytes_averaged=0, finished=()).milestones == [
        Milestone("100 samples", 18),
        Milestone("30 days", 58),
    ]
    assert names(dict.fromkeys(range(6), 1)) == ["First sample"]


def test_bytes_and_finished_runs_are_milestones_too() -> None:
    assert names({}, bytes_averaged=10**9 - 1) == []
    assert names({}, bytes_averaged=150 * 10**9, finished=[5]) == ["A finished run", "100 GB averaged"]
    assert reached({}, bytes_averaged=0, finished=[5, 6, 8, 9]).milestones == [Milestone("3 finished runs", 8)]
