"""Queries for a run of 3,000 steps: no more queries or rows than for 1,000 steps. Generated books pass the audit."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from django.db import connection
from django.db.models.sql import compiler
from django.test.utils import CaptureQueriesContext

from accounts.models import Person
from runs import selectors
from runs.ledger.audit import audit
from runs.lifecycle.membership import keep_helpers, members_of
from runs.models import NamedVolunteer, Release, Run
from runs.releases.card_facts import facts_at, has_given, is_card_stale
from tests.long_run import long_run
from tests.runs.factories import opened

SHORT, LONG = 1000, 3000  # steps; the curve is thinned in both
SLACK = 100  # rows: a thinned curve gains and loses points as it grows


class Cost(NamedTuple):
    questions: int
    rows: int


def cost_of(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> Cost:
    rows: list[int] = []
    original = compiler.cursor_iter

    def counted(*arguments: Any) -> Iterator[Any]:
        for part in original(*arguments):
            rows.append(len(part))
            yield part

    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as asked:
        patch.setattr(compiler, "cursor_iter", counted)
        work()
    return Cost(len(asked), sum(rows))


def looked_at(run: Run) -> None:
    fresh = Run.objects.select_related("dataset", "organizer", "head").get(pk=run.pk)
    selectors.run_picture(fresh)
    selectors.void_rounds(fresh)


def test_generated_books_have_no_fault(any_database: str, data_folder: Any) -> None:
    run = opened(Person.objects.create_user("Amina", None))
    long_run(run, steps=230, machines=6, shards=2)
    found = audit(run)
    assert found["faults"] == []
    assert (found["steps"], found["ledger_samples"]) == (230, 230 * 6 * 8)
    assert set(run.coverage.values_list("epoch", flat=True)) == set(range(11)), "through several epochs"


def test_a_look_at_a_long_run_reads_no_more_rows(
    organizer: Person, data_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {}
    for steps in (SHORT, LONG):
        run = opened(organizer, slug=f"run-{steps}")
        long_run(run, steps=steps, machines=4)
        costs[steps] = cost_of(monkeypatch, lambda run=run: looked_at(run))  # type: ignore[misc]
    assert costs[LONG].questions == costs[SHORT].questions
    assert costs[LONG].rows < costs[SHORT].rows + SLACK


def test_no_question_of_a_look_reads_records(organizer: Person, data_folder: Any) -> None:
    run = opened(organizer)
    long_run(run, steps=50, machines=4)
    with CaptureQueriesContext(connection) as asked:
        looked_at(run)
    assert not [line for line in asked if "runs_sealedrecord" in line["sql"]]


def test_who_gave_how_much_is_known_without_the_ledger(organizer: Person, data_folder: Any) -> None:
    """The totals cover the head of the log, which is requested most often. Only the ledger covers earlier steps."""
    run = opened(organizer)
    long_run(run, steps=50, machines=4)
    run = Run.objects.select_related("dataset", "head").get(pk=run.pk)
    names = sorted(run.totals.values_list("person__username", flat=True).distinct())
    people = [Person.objects.get(username=name) for name in names]
    release = Release.objects.create(run=run, state=Release.State.READY, named=names[:1])
    NamedVolunteer.objects.create(run=run, person=people[0])
    NamedVolunteer.objects.create(run=run, person=Person.objects.create_user("Noor", None))
    with CaptureQueriesContext(connection) as asked:
        assert [has_given(run, person) for person in (people[0], organizer)] == [True, False]
        assert not is_card_stale(release), "she who has agreed and gave nothing is on no card"
        known = facts_at(run, 50)
        keep_helpers(run)
    assert not [line["sql"] for line in asked if "runs_ledgerentry" in line["sql"]]
    assert sorted(members_of(run).values_list("person__username", flat=True)) == names
    before = facts_at(run, 49)
    assert (known.samples, before.samples) == (50 * 4 * 8, 49 * 4 * 8)
    assert (known.tokens, before.tokens) == (50 * 4 * 8 * 256, 49 * 4 * 8 * 256)
    assert [(one.name, one.share) for one in known.people] == [(one.name, one.share) for one in before.people] != []
    assert known.unnamed_samples + sum(one.samples for one in known.people) == known.samples


@pytest.mark.parametrize("last", [0, 1, 359, 360, 361, 1000, 10_000, 1_000_000, 10**9])
def test_a_curve_has_few_points_however_long_it_is(last: int) -> None:
    shown = selectors.places(last)
    assert len(shown) <= selectors.POINTS
    assert len(shown) >= min(last, selectors.POINTS // 3)
    assert shown == sorted(set(shown))
    newest = list(range(max(1, last - selectors.POINTS // 10 + 1), last + 1))
    assert shown[len(shown) - len(newest) :] == newest, "the newest are all there"


def test_a_curve_changes_little_from_step_to_step() -> None:
    lost = []
    for last in range(5000, 5400):
        before, after = selectors.places(last), selectors.places(last + 1)
        assert after[-1] == last + 1
        lost.append(len(set(before) - set(after)))
    assert sum(map(bool, lost)) <= 400 // (selectors.POINTS // 10) + 1
    assert max(lost) <= selectors.POINTS // 10
