"""Each machine's totals in a run. Commits and reversals update them and the ledger, which remains authoritative."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db.models import Exists, F, Min, OuterRef, QuerySet, Sum

from accounts.days import day_of
from accounts.models import Machine
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import RecordHead
from runs.models import KEPT, AveragedTotal, Check, DailyTotal, LedgerEntry, MachineTotal, Run

MOST = 2**63 - 1  # a column's maximum, which the credit for 10^10 tokens exceeds with 10^9 parameters
SUMS = ("samples", "tokens", "credit", "rounds", "person_rounds", "last_step")


def add_to_totals(run: Run, rows: Sequence[LedgerEntry], *, is_lost: bool = False) -> None:
    """Add an entry's ledger rows to the totals. Call this in the transaction that adds the rows, under the run's head.

    `is_lost`: see `count`.
    """
    known = MachineTotal.objects.filter(run=run, machine__in=[row.machine_id for row in rows])
    held = {total.machine_id: total for total in known}
    count(run, held, rows, is_lost=is_lost)
    MachineTotal.objects.bulk_create(
        [held[row.machine_id] for row in rows],
        update_conflicts=True,
        unique_fields=["run", "machine"],
        update_fields=SUMS,
    )


def add_to_day(run: Run, rows: Sequence[LedgerEntry], at: datetime) -> None:
    """Add an entry's ledger rows to the totals of the day `at`.

    Call this in the commit's transaction, after the head has moved.
    """
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


def count(run: Run, held: dict[UUID, MachineTotal], rows: Iterable[LedgerEntry], *, is_lost: bool = False) -> None:
    """Add an entry's rows to totals in memory. A round counts once per person, for the first of their machines.

    Rows that reverse others come after them.

    `is_lost`: the entry is on a lost branch. It may be added at any time, so it leaves `last_step` as it is.
    """
    counted: dict[int, int] = {}  # person -> the row that counts as a round of theirs
    for row in rows:
        total = held.get(row.machine_id)
        if total is None:
            total = held[row.machine_id] = MachineTotal(run=run, machine_id=row.machine_id, person_id=row.person_id)
        total.samples += row.samples
        total.tokens += row.tokens
        if row.reverses_id is not None:
            total.credit += row.credit if total.credit < MOST else 0
            total.rounds -= 1
            total.person_rounds -= counted.get(row.person_id) == row.reverses_id
            continue
        total.credit = min(MOST, total.credit + row.credit)
        total.rounds += 1
        total.person_rounds += row.person_id not in counted
        total.last_step = total.last_step if is_lost else row.step
        counted.setdefault(row.person_id, row.pk)


def confirm(run: Run, machine: UUID, *, passed: int, index: int) -> None:
    """Store that `passed` audits have confirmed a machine's work, up to the log entry `index`.

    Call this in a transaction, with the run's head locked. One query sums the rows since the last check.
    """
    known, _ = Check.objects.get_or_create(run=run, machine_id=machine)
    # `entry__run` lets the database find the few entries by the log's index, before it looks for their rows.
    rows = run.ledger.filter(KEPT, machine=machine, entry__run=run)
    since = rows.filter(entry__index__gt=known.index, entry__index__lte=index)
    samples = since.aggregate(given=Sum("samples", default=0))["given"]
    run.totals.filter(machine=machine).update(checked=F("checked") + samples)
    known.passed, known.index = passed, max(known.index, index)
    known.save()


# Taking credit back. The ledger only grows: a further row, with negative amounts, reverses an earlier one.

AT_ONCE = 1_000
AMOUNTS = ("samples", "tokens", "credit", "weight")


def reverse(run: Run, rows: QuerySet[LedgerEntry], reason: str) -> int:
    """Reverse these ledger rows, except for those that are reversed already, in all totals. Return their samples.

    Call this in a transaction, with the run's head locked. A thousand rows take one query, and each machine and each
    person's day one more.
    """
    open_rows, last = rows.filter(KEPT, run=run).order_by("pk"), 0
    confirmed = dict(run.checks.values_list("machine", "index"))
    by_machine, by_day = dict[UUID, Counter[str]](), dict[tuple[int, int], Counter[str]]()
    while some := list(open_rows.filter(pk__gt=last).select_related("entry")[:AT_ONCE]):
        last, first = some[-1].pk, first_rows(some)
        LedgerEntry.objects.bulk_create([_reversal_of(row, reason) for row in some])
        for row in some:
            amounts = {"samples": row.samples, "tokens": row.tokens}
            whole = {**amounts, "credit": row.credit, "rounds": 1, "person_rounds": int(row.pk in first)}
            whole["checked"] = row.samples if 0 < row.entry.index <= confirmed.get(row.machine_id, 0) else 0
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


# Bytes that each relay and auxiliary has averaged in a run, summed from the records. They do not affect rankings.

SHOWN = 100  # how many people are shown


class AveragedLine(NamedTuple):
    """A person, the bytes that their machines averaged, and whether they are also on the leaderboard."""

    name: str
    bytes_averaged: int
    is_ranked: bool


def add_averaged(run: Run, given: Mapping[PeerId, int]) -> None:
    """Add the bytes that an entry's reducers averaged to the totals of these machines.

    Call this in the commit's transaction, after the head has moved.
    """
    fresh = {UUID(peer): size for peer, size in given.items() if size}
    held = {row.machine_id: row for row in AveragedTotal.objects.filter(run=run, machine__in=list(fresh))}
    known = Machine.objects.filter(pk__in=list(fresh)).values_list("pk", "person_id")
    for machine, person in known:
        row = held.setdefault(machine, AveragedTotal(run=run, machine_id=machine, person_id=person))
        row.bytes_averaged = min(MOST, row.bytes_averaged + fresh[machine])
    AveragedTotal.objects.bulk_create(
        held.values(),
        update_conflicts=True,
        unique_fields=["run", "machine"],
        update_fields=["bytes_averaged"],
    )


def averaged_lines(run: Run) -> list[AveragedLine]:
    """Return the people whose machines averaged gradients, most bytes first. The site's own relays are left out."""
    members = run.averaged.exclude(machine__kind=Machine.Kind.RELAY)
    sums = members.order_by().values("person").annotate(given=Sum("bytes_averaged"))
    ranked = Exists(run.totals.filter(person=OuterRef("person")))
    rows = sums.order_by("-given", "person__username").values_list("person__username", "given", ranked)
    return [AveragedLine(*row) for row in rows[:SHOWN]]


def parts_averaged(head: RecordHead) -> dict[PeerId, float]:
    """Return the fraction of the gradient (0 to 1) that each reducer averaged for an entry."""
    chunks: dict[PeerId, int] = {}
    for span in head.spans:
        reducer = PeerId(span.reducer)
        chunks[reducer] = chunks.get(reducer, 0) + span.stop - span.first
    whole = sum(chunks.values())
    return {peer: count / whole for peer, count in chunks.items() if count}


def in_words(size: int) -> str:
    """Return a number of bytes as text, such as “1.5 GB” with a no-break space, or an empty string for 0."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f}\N{NO-BREAK SPACE}{unit}"
    return f"{size / 1e3:,.1f}\N{NO-BREAK SPACE}kB" if size else ""
