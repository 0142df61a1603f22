"""The generated rows of a crowded run match those that commits would have written."""

from typing import Any

import pytest
from django.db import transaction
from django.db.models import Count, Max, Sum

from accounts.models import Person
from runs import selectors
from runs.models import DailyTotal, Head, LedgerEntry, MachineTotal, Run
from tests.crowded_run import ONE_IN, crowded_run
from tests.runs.factories import default_database

MEMBERS, STEPS = 20, 250


@pytest.fixture
def crowded(migrated_postgres: str, data_folder: Any, django_db_blocker: Any) -> Any:
    with django_db_blocker.unblock(), default_database(migrated_postgres), transaction.atomic():
        yield crowded_run(Person.objects.create_superuser("Ines"), slug="crowded", members=MEMBERS, steps=STEPS)
        transaction.set_rollback(True)


def test_everybody_is_in_one_step_of_ten(crowded: Run) -> None:
    assert LedgerEntry.objects.count() == MEMBERS * STEPS // ONE_IN
    of_people = LedgerEntry.objects.order_by().values("person").annotate(n=Count("pk")).values_list("n", flat=True)
    assert set(of_people) == {STEPS // ONE_IN}
    assert set(crowded.log.values_list("peers", flat=True)) == {MEMBERS // ONE_IN}
    assert Head.objects.get(run=crowded).index == crowded.log.count() == STEPS


def test_what_is_kept_is_the_sum_of_the_ledger(crowded: Run) -> None:
    names = ("samples", "tokens", "credit")
    facts = {name: Sum(name) for name in names}
    of_ledger = (
        LedgerEntry.objects.order_by()
        .values("machine")
        .annotate(**{f"all_{name}": fact for name, fact in facts.items()}, rounds=Count("pk"), last=Max("step"))
    )
    columns = (*(f"all_{name}" for name in names), "rounds", "last")
    kept = MachineTotal.objects.values_list("machine", *names, "rounds", "last_step")
    assert sorted(kept) == sorted(of_ledger.values_list("machine", *columns))
    assert list(MachineTotal.objects.values_list("rounds", "person_rounds").distinct()).count((0, 0)) == 0
    by_day = DailyTotal.objects.order_by().values("person").annotate(n=Sum("samples")).values_list("person", "n")
    assert sorted(by_day) == sorted(
        LedgerEntry.objects.order_by().values("person").annotate(n=Sum("samples")).values_list("person", "n")
    )


def test_a_look_sees_all_of_it(crowded: Run) -> None:
    fresh = Run.objects.select_related("dataset", "organizer", "head").get(pk=crowded.pk)
    seen = selectors.run_picture(fresh)
    assert (seen.step, seen.people, seen.samples) == (STEPS, MEMBERS, 8 * MEMBERS * STEPS // ONE_IN)
    assert seen.heldout
    assert seen.written
    assert seen.averaged
