"""Leaderboards: totals, ranks, places, periods and recent contributions."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count, Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.days import day_of
from accounts.models import Machine, Person
from runs.ledger import standings
from runs.ledger.standings import Period, Place
from runs.models import DailyTotal, LedgerEntry, Run
from tests.runs.factories import Owned, committed, opened, owned

PEOPLE = 4


@pytest.fixture
def machines(db: None) -> list[Machine]:
    people = [Person.objects.create_user(f"hand {number}", None) for number in range(PEOPLE)]
    return [owned(person).machine for person in [*people, people[0]]]


ROUNDS = st.lists(st.dictionaries(st.integers(0, PEOPLE), st.integers(1, 9), min_size=1), min_size=1, max_size=6)


class TestContract:
    def test_sums_go_on_where_they_were(self, any_database: str, data_folder: Any, machines: list[Machine]) -> None:
        run, other = opened(machines[0].person), opened(machines[0].person, slug="other")
        committed(run, (machines[0], 3), (machines[4], 4), (machines[1], 6))
        assert standings.totals(run) == (2, 3, 13, 8 * 13)
        committed(other, (machines[0], 50))
        committed(run, (machines[2], 1), (machines[1], 2))
        assert standings.totals(run) == (3, 4, 16, 8 * 16)
        board = standings.leaderboard(run)
        assert [(line.rank, line.name, line.samples, line.rounds, line.machines) for line in board] == [
            (1, "hand 1", 8, 2, 1),
            (2, "hand 0", 7, 1, 2),
            (3, "hand 2", 1, 1, 1),
        ]

    def test_the_first_lines_come_with_the_sums_of_all(
        self, any_database: str, data_folder: Any, machines: list[Machine]
    ) -> None:
        run = opened(machines[0].person)
        assert standings.board_and_totals(run) == ([], (0, 0, 0, 0))
        committed(run, (machines[0], 3), (machines[4], 4), (machines[1], 6), (machines[2], 1))
        committed(run, (machines[1], 2))
        assert standings.board_and_totals(run) == (standings.leaderboard(run), standings.totals(run))
        assert standings.board_and_totals(run, limit=1) == (standings.leaderboard(run, limit=1), (3, 4, 16, 8 * 16))

    def test_ranks_move_since_the_day_began(self, any_database: str, data_folder: Any, machines: list[Machine]) -> None:
        run, today = opened(machines[0].person), day_of(timezone.now())
        committed(run, (machines[0], 9), (machines[1], 6), (machines[2], 3))
        DailyTotal.objects.update(day=today - 1)
        committed(run, (machines[2], 8), (machines[3], 7), (machines[4], 1))
        moved = [(line.name, line.rank, line.moved) for line in standings.leaderboard(run, today=today)]
        assert moved == [("hand 2", 1, 2), ("hand 0", 2, -1), ("hand 3", 3, 0), ("hand 1", 4, -2)], "one is new today"
        assert standings.board_and_totals(run, today=today)[0] == standings.leaderboard(run, today=today)
        assert {line.moved for line in standings.leaderboard(run)} == {0}, "nobody has asked since when"
        assert {line.moved for line in standings.leaderboard(run, today=today + 1)} == {0}, "a new day"
        assert [line.name for line in standings.leaderboard(run, today=today, offset=1, limit=1)] == ["hand 0"]

    def test_days_and_weeks(self, any_database: str, data_folder: Any, machines: list[Machine]) -> None:
        """A sample's weight halves every week. The daily board counts only today."""
        run, now = opened(machines[0].person), timezone.now()
        committed(run, (machines[0], 3), (machines[4], 4), (machines[1], 6))
        committed(run, (machines[1], 2))
        days = {"hand 2": (7, 20), "hand 3": (14, 100)}
        for name, (age, samples) in days.items():
            person = Person.objects.get(username=name)
            DailyTotal.objects.create(run=run, person=person, day=day_of(now) - age, samples=samples)
        old = Person.objects.get(username="hand 3")
        DailyTotal.objects.create(run=run, person=old, day=day_of(now) - standings.OLDEST_DAYS, samples=10**9)
        board = partial(standings.period_board, run)
        assert board(Period.DAY, now) == [(1, "hand 1", 8), (2, "hand 0", 7)]
        assert board(Period.WEEK, now) == [(1, "hand 3", 25), (2, "hand 2", 10), (3, "hand 1", 8), (4, "hand 0", 7)]
        assert board(Period.WEEK, now, offset=1, limit=2) == [(2, "hand 2", 10), (3, "hand 1", 8)]
        assert board(Period.DAY, now + timedelta(days=1)) == []
        assert board(Period.WEEK, now + timedelta(days=7))[2] == (3, "hand 1", 4)

    def test_machines_are_ranked_under_their_peoples_names(
        self, any_database: str, data_folder: Any, machines: list[Machine]
    ) -> None:
        run = opened(machines[0].person)
        committed(run, (machines[0], 3), (machines[4], 4), (machines[1], 4))
        board = standings.machine_board(run)
        assert [(row.rank, row.name, row.samples) for row in board] == [
            (1, "hand 0", 4),
            (1, "hand 1", 4),
            (3, "hand 0", 3),
        ]
        assert {row.machine for row in board} == {"laptop"}

    def test_what_was_given_lately(self, any_database: str, data_folder: Any, machines: list[Machine]) -> None:
        run = opened(machines[0].person)
        for step in range(1, 63):
            committed(run, (machines[0], 1), (machines[4], 1), *([(machines[1], step)] if step > 57 else []))
        known = standings.recent(run, ["hand 0", "hand 1", "hand 3"])
        # Each value covers five steps. The last one, with steps 61 and 62, is not complete.
        assert known.steps == 57
        assert known.given["hand 0"] == [10] * 11 + [4]
        assert known.given["hand 1"] == [0] * 10 + [58 + 59 + 60, 61 + 62]
        assert known.given["hand 3"] == [0] * 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(rounds=ROUNDS)
def test_totals_are_the_sums_of_the_ledger(
    machines: list[Machine], data_folder: Any, rounds: list[dict[int, int]]
) -> None:
    run = opened(machines[0].person, slug=f"run-{Run.objects.count()}")
    for parts in rounds:
        committed(run, *((machines[place], samples) for place, samples in parts.items()))
    asked = LedgerEntry.objects.filter(run=run).values_list("person__username")
    rounds_of, machines_of = Count("entry", distinct=True), Count("machine", distinct=True)
    truth = set(asked.annotate(Sum("samples"), Sum("tokens"), r=rounds_of, m=machines_of))
    board = standings.leaderboard(run, limit=100)
    assert {(line.name, line.samples, line.tokens, line.rounds, line.machines) for line in board} == truth
    for line in board:
        assert line.rank == 1 + sum(other.samples > line.samples for other in board)
        place = standings.place_of(run, Person.objects.get(username=line.name))
        above = [other for other in board if other.samples > line.samples]
        expected = Place(line.rank, above[-1].rank, above[-1].samples - line.samples) if above else Place(1, 1, None)
        assert place == expected


def test_who_gave_nothing_has_no_place(run: Run, laptop: Owned, stranger: Person) -> None:
    assert standings.place_of(run, stranger) is None
    committed(run, (laptop.machine, 4))
    assert standings.place_of(run, stranger) is None


def test_a_new_run_has_nothing_lately(run: Run) -> None:
    assert standings.recent(run, []) == (0, {})


def test_shares_of_the_last_steps_are_read_by_the_steps(run: Run, laptop: Owned, organizer: Person) -> None:
    """A host reads the shares every second, from the last fifty steps rather than the whole ledger of a long run."""
    other = owned(organizer).machine
    committed(run, (laptop.machine, 1000))
    for _ in range(3):
        committed(run, (laptop.machine, 1), (other, 2))
    each = {"Amina": 2, "Teo": 1}
    assert standings.shares(run, steps=3, limit=10) == (3, 9, {"Amina": 6, "Teo": 3}, [each, each, each])
    assert standings.shares(run, steps=3, limit=1) == (3, 9, {"Amina": 6}, [each, each, each])
    assert standings.shares(run, steps=50, limit=1) == (4, 1009, {"Teo": 1003}, [{"Teo": 1000}, each, each, each])
    with CaptureQueriesContext(connection) as asked:
        standings.shares(run, steps=3, limit=10)
    with connection.cursor() as cursor:
        cursor.execute(f"explain query plan {asked.captured_queries[0]['sql']}")
        plan = " ".join(str(row) for row in cursor.fetchall())
    assert "runs_ledgerentry" in plan
    assert "ledger_by_person_and_step" not in plan, plan
    assert "SCAN runs_ledgerentry" not in plan, plan


def test_contributions_to_several_runs_are_read_at_once(
    any_database: str, organizer: Person, django_assert_num_queries: Any
) -> None:
    runs = [opened(organizer, slug=name) for name in ("one", "two", "empty")]
    people = [Person.objects.create_user(name, None) for name in ("Teo", "Ida", "Noor")]
    machines = [owned(person).machine for person in people]
    committed(runs[0], *((machine, 4 + place) for place, machine in enumerate(machines)))
    committed(runs[0], (owned(people[0], "other").machine, 8))
    committed(runs[1], (machines[1], 3))
    with django_assert_num_queries(1):
        given = standings.given_in(runs, most=2)
    assert given == {runs[0].pk: (3, 23, {"Teo": 12, "Noor": 6}), runs[1].pk: (1, 3, {"Ida": 3})}
    assert list(given[runs[0].pk].by_name) == ["Teo", "Noor"]
