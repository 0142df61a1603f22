"""Take credit back. The ledger only grows: a further row, with negative amounts, reverses an earlier one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from django.db.models import F, Min, QuerySet

from accounts.days import day_of
from runs.ledger.totals import MOST
from runs.models import KEPT, DailyTotal, LedgerEntry, MachineTotal, Run

AT_ONCE = 1_000
AMOUNTS = ("samples", "tokens", "credit", "weight")


def reverse(run: Run, rows: QuerySet[LedgerEntry], reason: str) -> int:
    """Reverse these ledger rows, except for those that are reversed already, in all totals. Return their samples.

    Call this in a transaction, with the run's head locked. A thousand rows take one query, and each machine and each
    person's day one more.
    """
    open_rows, last = rows.filter(KEPT, run=run).order_by("pk"), 0
    by_machine, by_day = dict[UUID, Counter[str]](), dict[tuple[int, int], Counter[str]]()
    while some := list(open_rows.filter(pk__gt=last).select_related("entry")[:AT_ONCE]):
        last, first = some[-1].pk, first_rows(some)
        LedgerEntry.objects.bulk_create([_reversal_of(row, reason) for row in some])
        for row in some:
            amounts = {"samples": row.samples, "tokens": row.tokens}
            whole = {**amounts, "credit": row.credit, "rounds": 1, "person_rounds": int(row.pk in first)}
            by_machine.setdefault(row.machine_id, Counter()).update(whole)
            by_day.setdefault((row.person_id, day_of(row.entry.at)), Counter()).update(amounts)
    _take(run, by_machine, by_day)
    return sum(amounts["samples"] for amounts in by_machine.values())


def first_rows(rows: Sequence[LedgerEntry]) -> set[int]:
    """Return the keys of the rows that count as a round of their person: the first one in each of their entries."""
    own = LedgerEntry.objects.filter(entry__in={row.entry_id for row in rows}, reverses=None)
    found = own.order_by().values("entry", "person").annotate(first=Min("pk"))
    return set(found.values_list("first", flat=True))


def _reversal_of(row: LedgerEntry, reason: str) -> LedgerEntry:
    same = {name: getattr(row, name) for name in ("run_id", "entry_id", "step", "person_id", "machine_id")}
    return LedgerEntry(reverses=row, reason=reason, **same, **{name: -getattr(row, name) for name in AMOUNTS})


def _take(run: Run, by_machine: Mapping[UUID, Counter[str]], by_day: Mapping[tuple[int, int], Counter[str]]) -> None:
    """Subtract amounts from the totals of machines, and of persons' days."""
    for machine, amounts in by_machine.items():
        mine = MachineTotal.objects.filter(run=run, machine=machine)
        mine.exclude(credit=MOST).update(credit=F("credit") - amounts.pop("credit"))
        mine.update(**{name: F(name) - amount for name, amount in amounts.items()})
    for (person, day), amounts in by_day.items():
        of_day = DailyTotal.objects.filter(run=run, person=person, day=day)
        of_day.update(**{name: F(name) - amount for name, amount in amounts.items()})
