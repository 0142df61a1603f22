"""An audit that compares a run's records, ledger, coverage, totals and snapshot files.

Records must be signed and chained, and no sample may be used twice. The audit reads the whole log and all the files.
Its running time grows with the number of steps, its memory use with the number of shards and machines.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db.models import Sum
from msgspec.structs import astuple

from accounts.keys import site_key
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import GENESIS, Entry, Record, Unit, digest_of, open_record
from runs import storage
from runs.ledger.records import AT_ONCE, Place, Ranges, add_units, overlaps, sealed_of, with_records
from runs.ledger.totals import SUMS, count
from runs.models import Head, LedgerEntry, LogEntry, MachineTotal, Run

Line = tuple[str, int, int, int]  # machine, samples, tokens, credit


@dataclass
class Books:
    previous: str = GENESIS
    steps: int = 0
    committed: int = 0
    ranges: dict[Place, Ranges] = field(default_factory=dict)
    totals: dict[UUID, MachineTotal] = field(default_factory=dict)


REFUSED = "refused"


def audit(run: Run) -> dict[str, Any]:
    """Return the run's totals, each read from a separate source, with one sentence for every fault found."""
    books = Books()
    faults = [fault for entries in _in_parts(run) for fault in _read(run, books, entries)]
    faults += _strays(run)
    faults += _head_faults(run, books.steps, books.previous)
    faults += _coverage_faults(run, books.ranges)
    faults += _total_faults(run, books.totals)
    faults += _file_faults(run)
    return {
        "run": run.slug,
        "steps": books.steps,
        "committed_samples": books.committed,
        "ledger_samples": LedgerEntry.objects.filter(run=run).aggregate(given=Sum("samples", default=0))["given"],
        "snapshots": _snapshots(run),
        "faults": faults,
    }


def _in_parts(run: Run) -> Iterator[list[LogEntry]]:
    first = 0
    while entries := list(with_records(run, first=first)[:AT_ONCE]):
        yield entries
        first = entries[-1].index + 1


def _read(run: Run, books: Books, entries: list[LogEntry]) -> Iterator[str]:
    rows = LedgerEntry.objects.filter(entry__in=entries).order_by("entry", "pk")
    ledger = {entry: list(group) for entry, group in groupby(rows, key=lambda row: row.entry_id)}
    for entry in entries:
        mine = ledger.get(entry.pk, [])
        count(run, books.totals, mine)
        yield from _read_entry(books, entry, Counter(map(_line, mine)))


def _line(row: LedgerEntry) -> Line:
    return row.machine_id.hex, row.samples, row.tokens, row.credit


def _read_entry(books: Books, entry: LogEntry, rows: Counter[Line]) -> Iterator[str]:
    books.steps += 1
    if not hasattr(entry, "sealed"):
        yield f"entry {entry.index} has no record"
        return
    sealed = sealed_of(entry)
    try:
        record = open_record(sealed, public_bytes(site_key()))
    except Problem as problem:
        yield f"entry {entry.index}: {problem}"
        return
    units = [unit for part in record.contributions for unit in part.units]
    books.committed += sum(part.samples for part in record.contributions)
    yield from _faults_of(entry, record, sealed, books.previous, rows)
    yield from _used_again(books.ranges, units)
    books.previous = digest_of(sealed)


def _faults_of(entry: LogEntry, record: Record, sealed: Entry, previous: str, rows: Counter[Line]) -> Iterator[str]:
    if record.previous != previous:
        yield f"entry {entry.index} does not follow the one before it"
    if (record.index, record.step, digest_of(sealed)) != (entry.index, entry.step, entry.digest):
        yield f"entry {entry.index} is not the record that its row describes"
    expected: Counter[Line] = Counter(
        (part.peer, part.samples, part.tokens, part.credit) for part in record.contributions
    )
    for line in (expected - rows).elements():
        yield f"step {record.step}: {line[1]} samples of machine {line[0][:8]} are not in the ledger"
    for line in (rows - expected).elements():
        yield f"step {record.step}: the ledger has {line[1]} samples of machine {line[0][:8]} that were not committed"


def _strays(run: Run) -> Iterator[str]:
    """Yield a fault for each ledger row whose entry is not in the run's log."""
    inside = LogEntry.objects.filter(run=run).values("pk")
    strays = LedgerEntry.objects.filter(run=run).exclude(entry__in=inside).order_by("entry")
    for key in strays.values_list("entry", flat=True).distinct():
        yield f"ledger rows of an entry that is not in the log ({key})"


def _used_again(ranges: dict[Place, Ranges], units: list[Unit]) -> Iterator[str]:
    """Add the units to the ranges. Yield a fault for each unit that overlaps a range added earlier."""
    for unit in units:
        if overlaps(ranges.get((unit.epoch, unit.shard), []), unit.start, unit.stop):
            yield f"samples {astuple(unit)} are in 2 updates"
        add_units(ranges, [unit])


def _head_faults(run: Run, steps: int, digest: str) -> Iterator[str]:
    head = Head.objects.get(run=run)
    if (head.index, head.digest) != (steps, digest):
        yield f"the head is at entry {head.index}, the log ends at {steps}"


def _coverage_faults(run: Run, ranges: dict[Place, Ranges]) -> Iterator[str]:
    """Yield a fault where coverage and records differ. Samples missing from coverage would be leased twice."""
    held = {(row.epoch, row.shard): row.ranges for row in run.coverage.iterator(chunk_size=AT_ONCE) if row.ranges}
    for epoch, shard in sorted(place for place in held.keys() | ranges.keys() if held.get(place) != ranges.get(place)):
        yield f"epoch {epoch}, shard {shard}: the coverage is not what the records say"


def _total_faults(run: Run, counted: dict[UUID, MachineTotal]) -> Iterator[str]:
    held = {row.machine_id: row for row in run.totals.all()}
    for machine in sorted(held.keys() | counted.keys()):
        if _sums(held.get(machine)) != _sums(counted.get(machine)):
            yield f"machine {machine.hex[:8]}: the total is not the sum of its ledger rows"


def _sums(total: MachineTotal | None) -> tuple[int, ...]:
    return (total.person_id, *(getattr(total, name) for name in SUMS)) if total else ()


def _snapshots(run: Run) -> list[dict[str, Any]]:
    """Return each snapshot with its state: verified by a replay, admitted by most people, or refused."""
    kept = [(row.index, row.step, str(row.state), row.file) for row in run.snapshots.order_by("index")]
    gone = [(row.index, row.step, REFUSED, row.file) for row in run.refused_snapshots.all()]
    return [{"step": step, "state": state, "file": file} for _, step, state, file in sorted(kept + gone)]


def _file_faults(run: Run) -> Iterator[str]:
    for snapshot in run.snapshots.filter(is_stored=True).order_by("index"):
        try:
            with storage.snapshot_path(run, snapshot.file).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            yield f"step {snapshot.step}: the snapshot's file cannot be read ({error.strerror})"
            continue
        if found != snapshot.file:
            yield f"step {snapshot.step}: the snapshot's file has another sha256 than its name"
