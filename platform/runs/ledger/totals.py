"""What each machine has given to a run: sums that a commit writes with its ledger rows, which stay the truth."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from accounts.days import day_of
from runs.models import DailyTotal, LedgerEntry, MachineTotal, Run

MOST = 2**63 - 1  # that a column holds: 10^10 tokens of a model of 10^9 parameters
SUMS = ("samples", "tokens", "credit", "rounds", "person_rounds", "last_step")


def add_to_totals(run: Run, rows: Sequence[LedgerEntry]) -> None:
    """Add the ledger rows of one entry. Within the commit's transaction, behind the head's fence."""
    known = MachineTotal.objects.filter(run=run, machine__in=[row.machine_id for row in rows])
    held = {total.machine_id: total for total in known}
    count(run, held, rows)
    MachineTotal.objects.bulk_create(
        [held[row.machine_id] for row in rows],
        update_conflicts=True,
        unique_fields=["run", "machine"],
        update_fields=SUMS,
    )


def add_to_day(run: Run, rows: Sequence[LedgerEntry], at: datetime) -> None:
    """Add the ledger rows of one entry to its day. Within the commit's transaction, behind the head's fence."""
    day = day_of(at)
    known = DailyTotal.objects.filter(run=run, day=day, person__in={row.person_id for row in rows})
    held = {total.person_id: total for total in known}
    for row in rows:
        total = held.setdefault(row.person_id, DailyTotal(run=run, person_id=row.person_id, day=day))
        total.samples += row.samples
        total.tokens += row.tokens
    DailyTotal.objects.bulk_create(
        list(held.values()),
        update_conflicts=True,
        unique_fields=["run", "person", "day"],
        update_fields=["samples", "tokens"],
    )


def count(run: Run, held: dict[UUID, MachineTotal], rows: Iterable[LedgerEntry]) -> None:
    """Add the rows of one entry, in order, to the totals in memory.

    A round counts once for a person, however many of their machines are in it: under the first of them.
    """
    counted: set[int] = set()
    for row in rows:
        fresh = MachineTotal(run=run, machine_id=row.machine_id, person_id=row.person_id)
        total = held.setdefault(row.machine_id, fresh)
        total.samples += row.samples
        total.tokens += row.tokens
        total.credit = min(MOST, total.credit + row.credit)
        total.rounds += 1
        total.person_rounds += row.person_id not in counted
        total.last_step = row.step
        counted.add(row.person_id)
