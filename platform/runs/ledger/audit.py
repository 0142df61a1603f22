"""An audit that compares a run's records, ledger, coverage, totals and snapshot files.

Records must be signed and chained, and no sample may be used twice. All queries see the database at one moment, so a
run may keep training. An audit without faults stores its sums (`AuditMark`). The next audit continues from them: it
reads only newer entries, and compares the sum of the whole ledger. If it finds a fault, it starts again and reads all
entries. Memory use grows with the number of shards and machines.
"""

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import F, OuterRef, Subquery, Sum
from msgspec import Struct, field
from msgspec.structs import astuple

from accounts.keys import site_key
from accounts.models import Machine
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import GENESIS, Record, Unit, digest_of, open_record
from runs import storage
from runs.ledger.records import (
    AT_ONCE,
    Place,
    Ranges,
    add_units,
    entries_with,
    lost_records,
    overlaps,
    sealed_of,
    with_records,
)
from runs.ledger.totals import SUMS, count
from runs.models import KEPT, AuditMark, Head, LedgerEntry, LogEntry, MachineTotal, Member, Run

Line = tuple[str, int, int, int]  # machine, samples, tokens, credit
REFUSED, BRIDGED = "refused", "not checked, because averages are lost"
NOT_ITS_ROW = "entry {index} is not the record that its row describes"
TOTAL = ("machine_id", "person_id", *SUMS)
OVERDUE = 200  # entries with work since a machine's last check; at 5 %, one machine in 30,000 has that many by chance
COLUMNS = ("entry_id", "pk", "machine_id", "person_id", "step", "samples", "tokens", "credit", "reverses_id")


class Books(Struct, array_like=True):
    """The sums of an audit that has read a run's log up to the entry `steps`, whose digest is `previous`."""

    previous: str = GENESIS
    steps: int = 0
    committed: int = 0
    lost: int = 0  # entries read that are on lost branches
    lost_samples: int = 0
    reversed: int = 0  # samples whose credit was taken back
    unknown: int = 0  # samples from machines unknown to a restored database, which have no ledger row
    last_row: int = 0  # last ledger row read
    ranges: dict[Place, Ranges] = field(default_factory=dict)
    totals: dict[UUID, MachineTotal] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # size and time of files whose sha256 is right


def audit(run: Run, *, is_full: bool = False) -> dict[str, Any]:
    """Audit a run. Return its totals, each read from a separate source, and one sentence for each fault.

    `read` is the number of entries that this audit read. If `is_full`, it reads all entries, even those that earlier
    audits covered.
    """
    with one_moment():
        books = Books() if is_full else _audited(run)
        before, last_row = books.steps, books.last_row
        faults = [fault for entries in _in_parts(run, before) for fault in _read(run, books, entries)]
        faults += _read_lost(run, books)
        faults += _strays(run, last_row)
        faults += _head_faults(run, books.steps, books.previous)
        faults += _coverage_faults(run, books.ranges)
        faults += _total_faults(run, books.totals)
        faults += [] if before else _checked_faults(run)  # reads the whole ledger once more
        checked = run.totals.aggregate(given=Sum("checked", default=0))["given"]
        overdue = _overdue(run)
        given = LedgerEntry.objects.filter(run=run).aggregate(given=Sum("samples", default=0))["given"]
        files = dict(run.snapshots.filter(is_stored=True).order_by("index").values_list("file", "step"))
        snapshots = _snapshots(run)
    if before and (faults or given != books.committed + books.lost_samples - books.unknown - books.reversed):
        return audit(run, is_full=True)
    books.files = {file: known for file, known in books.files.items() if file in files}
    faults += [fault for file, step in files.items() for fault in _file_faults(run, step, file, books.files)]
    if not faults:
        _store(run, books)
    return {
        "run": run.slug,
        "steps": books.steps,
        "read": books.steps - before,
        "committed_samples": books.committed,
        "ledger_samples": given,
        "lost_samples": books.lost_samples,
        "unknown_samples": books.unknown,
        "reversed_samples": books.reversed,
        "checked_samples": checked,
        "overdue": overdue,
        "snapshots": snapshots,
        "faults": faults,
    }


@contextmanager
def one_moment() -> Iterator[None]:
    """Make all queries in a `with` block see the database at one moment, while other transactions commit.

    If the caller is already in a transaction, do nothing.
    """
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "postgresql":
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # It locks nothing that others wait for, so it may take longer than other transactions.
            cursor.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
            yield
    else:
        sqlite: Any = connection
        sqlite.ensure_connection()
        # Other transactions take SQLite's write lock at once.
        usual, sqlite.transaction_mode = sqlite.transaction_mode, "DEFERRED"
        try:
            with transaction.atomic():
                yield
        finally:
            sqlite.transaction_mode = usual


def _audited(run: Run) -> Books:
    """Return the books that the last audit stored, or empty books if its last entry is not in the run's log."""
    mark = AuditMark.objects.filter(run=run).first()
    if mark is None or not LogEntry.objects.filter(run=run, index=mark.index, digest=mark.digest).exists():
        return Books()
    try:
        return msgspec.msgpack.decode(zlib.decompress(bytes(mark.books)), type=Books, dec_hook=_total_of)
    except (msgspec.MsgspecError, zlib.error, TypeError, ValueError):  # written by another version of this site
        return Books()


def _store(run: Run, books: Books) -> None:
    packed = zlib.compress(msgspec.msgpack.encode(books, enc_hook=attrgetter(*TOTAL)))
    facts = {"index": books.steps, "digest": books.previous, "books": packed}
    AuditMark.objects.update_or_create(run=run, defaults=facts)


def _total_of(_: type, stored: Any) -> MachineTotal:
    """Return a machine's total as packed by `_store`. Raises ValueError if another version packed it."""
    machine, *rest = stored
    return MachineTotal(machine_id=UUID(machine), **dict(zip(TOTAL[1:], rest, strict=True)))


def _in_parts(run: Run, before: int) -> Iterator[list[LogEntry]]:
    first = before + 1
    while entries := list(with_records(run, first=first)[:AT_ONCE]):
        yield entries
        first = entries[-1].index + 1


def _read(run: Run, books: Books, entries: list[LogEntry]) -> Iterator[str]:
    ledger = _rows_of(entries, books)
    for entry in entries:
        mine = ledger.get(entry.pk, [])
        count(run, books.totals, mine)
        yield from _reversals(books, mine)
        yield from _read_entry(books, entry, _lines(mine))


def _read_lost(run: Run, books: Books) -> Iterator[str]:
    """Read entries on lost branches that the books do not have. Yield a fault for each that the site did not sign.

    Such an entry follows no other, and its samples may be in the log as well.
    """
    while entries := list(lost_records(run, after=books.lost)[:AT_ONCE]):
        ledger = _rows_of(entries, books)
        for entry in entries:
            mine = ledger.get(entry.pk, [])
            books.lost = -entry.index
            count(run, books.totals, mine, is_lost=True)
            yield from _reversals(books, mine)
            opened = _opened(entry)
            if isinstance(opened, str):
                yield opened
                continue
            record, digest = opened
            books.lost_samples += record.samples
            if (record.step, digest) != (entry.step, entry.digest):
                yield NOT_ITS_ROW.format(index=entry.index)
            if entries_with(run, record.index, digest).count() > 1:
                yield f"entry {entry.index} is in the log twice"
            yield from _row_faults(books, record, _lines(mine))


def _rows_of(entries: list[LogEntry], books: Books) -> dict[int, list[Any]]:
    """Return the ledger rows of each entry, by its key. Remember the highest key of a row in the books."""
    found: Any = LedgerEntry.objects.filter(entry__in=entries).order_by("entry", "pk")
    rows = found.values_list(*COLUMNS, named=True)
    ledger = {entry: list(group) for entry, group in groupby(rows, key=attrgetter("entry_id"))}
    books.last_row = max([books.last_row, *(group[-1].pk for group in ledger.values())])
    return ledger


def _lines(rows: list[Any]) -> Counter[Line]:
    return Counter(_line(row) for row in rows if row.reverses_id is None)


def _line(row: Any) -> Line:
    return row.machine_id.hex, row.samples, row.tokens, row.credit


def _reversals(books: Books, rows: list[Any]) -> Iterator[str]:
    """Add up the credit that was taken back. Yield a fault for each row that does not undo exactly the one it names."""
    given = {row.pk: _line(row) for row in rows if row.reverses_id is None}
    for row in rows:
        if row.reverses_id is not None:
            books.reversed -= row.samples
            machine, *amounts = _line(row)
            if given.get(row.reverses_id) != (machine, *(-amount for amount in amounts)):
                yield f"step {row.step}: a ledger row takes back other credit than machine {machine[:8]} was given"


def _read_entry(books: Books, entry: LogEntry, rows: Counter[Line]) -> Iterator[str]:
    books.steps += 1
    opened = _opened(entry)
    if isinstance(opened, str):
        yield opened
        return
    record, digest = opened
    units = [unit for part in record.contributions for unit in part.units]
    books.committed += sum(part.samples for part in record.contributions)
    yield from _faults_of(books, entry, record, digest, rows)
    yield from _used_again(books.ranges, units)
    books.previous = digest


def _opened(entry: LogEntry) -> tuple[Record, str] | str:
    """Return an entry's record and its digest. If the site did not sign it, return a fault instead."""
    if not hasattr(entry, "sealed"):
        return f"entry {entry.index} has no record"
    sealed = sealed_of(entry)
    try:
        return open_record(sealed, public_bytes(site_key())), digest_of(sealed)
    except Problem as problem:
        return f"entry {entry.index}: {problem}"


def _faults_of(books: Books, entry: LogEntry, record: Record, digest: str, rows: Counter[Line]) -> Iterator[str]:
    if record.previous != books.previous:
        yield f"entry {entry.index} does not follow the one before it"
    if (record.index, record.step, digest) != (entry.index, entry.step, entry.digest):
        yield NOT_ITS_ROW.format(index=entry.index)
    yield from _row_faults(books, record, rows)


def _row_faults(books: Books, record: Record, rows: Counter[Line]) -> Iterator[str]:
    expected: Counter[Line] = Counter(
        (part.peer, part.samples, part.tokens, part.credit) for part in record.contributions
    )
    for line in (expected - rows).elements():
        if not Machine.objects.filter(pk=UUID(line[0])).exists():
            books.unknown += line[1]
            continue
        yield f"step {record.step}: {line[1]} samples of machine {line[0][:8]} are not in the ledger"
    for line in (rows - expected).elements():
        yield f"step {record.step}: the ledger has {line[1]} samples of machine {line[0][:8]} that were not committed"


def _strays(run: Run, after: int) -> Iterator[str]:
    """Yield a fault for each entry that is not in the run's log but has ledger rows with keys above `after`."""
    inside = LogEntry.objects.filter(run=run).values("pk")
    strays = LedgerEntry.objects.filter(run=run, pk__gt=after).exclude(entry__in=inside).order_by("entry")
    for key in strays.values_list("entry", flat=True).distinct():
        yield f"ledger rows of an entry that is not in the log ({key})"


def _used_again(ranges: dict[Place, Ranges], units: list[Unit]) -> Iterator[str]:
    """Add the units to the ranges. Yield a fault for each unit that overlaps an earlier range."""
    for unit in units:
        if overlaps(ranges.get((unit.epoch, unit.shard), []), unit.start, unit.stop):
            yield f"samples {astuple(unit)} are in 2 updates"
        add_units(ranges, [unit])


def _head_faults(run: Run, steps: int, digest: str) -> Iterator[str]:
    head = Head.objects.get(run=run)
    if (head.index, head.digest) != (steps, digest):
        yield f"the head is at entry {head.index}, the log ends at {steps}"


def _coverage_faults(run: Run, ranges: dict[Place, Ranges]) -> Iterator[str]:
    """Yield a fault for each epoch and shard whose coverage differs from the records.

    After a restart, a host would lease samples again if they were missing from the coverage.
    """
    held = {(row.epoch, row.shard): row.ranges for row in run.coverage.iterator(chunk_size=AT_ONCE) if row.ranges}
    for epoch, shard in sorted(place for place in held.keys() | ranges.keys() if held.get(place) != ranges.get(place)):
        yield f"epoch {epoch}, shard {shard}: the coverage is not what the records say"


def _total_faults(run: Run, counted: dict[UUID, MachineTotal]) -> Iterator[str]:
    held = {row.machine_id: row for row in run.totals.all()}
    for machine in sorted(held.keys() | counted.keys()):
        if _sums(held.get(machine)) != _sums(counted.get(machine)):
            yield f"machine {machine.hex[:8]}: the total is not the sum of its ledger rows"


def _checked_faults(run: Run) -> Iterator[str]:
    """Yield a fault for each machine whose checked samples are not those up to its last check."""
    last = run.checks.filter(machine=OuterRef("machine")).values("index")
    rows = run.ledger.filter(KEPT, entry__run=run, entry__index__gt=0, entry__index__lte=Subquery(last)).order_by()
    known = dict(rows.values("machine").annotate(given=Sum("samples")).values_list("machine", "given"))
    for machine, checked in run.totals.order_by("pk").values_list("machine", "checked"):
        if checked != known.get(machine, 0):
            yield f"machine {machine.hex[:8]}: {checked} samples count as checked, but {known.get(machine, 0)} were"


def _overdue(run: Run) -> list[dict[str, Any]]:
    """Return the strangers' machines that should have been checked again by now, with their provisional samples.

    A machine whose gradients are sent in int4, or that always carries work over, cannot be checked.
    """
    if run.members_only:
        return []
    vouched = Member.objects.filter(run=run, removed_at=None).values("person")
    strangers = run.totals.exclude(person=run.organizer_id).exclude(person__in=vouched).select_related("person")
    last, found = dict(run.checks.values_list("machine", "index")), list[dict[str, Any]]()
    for total in strangers.filter(samples__gt=F("checked"), rounds__gte=OVERDUE).order_by("pk"):
        own = run.ledger.filter(KEPT, machine=total.machine_id, entry__run=run)
        own = own.filter(entry__index__gt=last.get(total.machine_id, 0))
        if own[:OVERDUE].count() == OVERDUE:
            machine = {"machine": total.machine_id.hex, "person": total.person.username}
            found.append({**machine, "samples": total.samples - total.checked})
    return found


def _sums(total: MachineTotal | None) -> tuple[int, ...]:
    return (total.person_id, *(getattr(total, name) for name in SUMS)) if total else ()


def _snapshots(run: Run) -> list[dict[str, Any]]:
    """Return each snapshot with its state: verified by a replay, admitted, no longer verifiable, or refused."""
    rows = run.snapshots.order_by("index")
    kept = [(row.index, row.step, BRIDGED if row.is_bridged else str(row.state), row.file) for row in rows]
    gone = [(row.index, row.step, REFUSED, row.file) for row in run.refused_snapshots.all()]
    return [{"step": step, "state": state, "file": file} for _, step, state, file in sorted(kept + gone)]


def _file_faults(run: Run, step: int, name: str, known: dict[str, tuple[int, int]]) -> Iterator[str]:
    """Yield a fault if a snapshot's file cannot be read, or if its name is not its SHA-256.

    Do not hash a file again if it has the size and time that `known` has for it.
    """
    try:
        with storage.local(storage.snapshot_path(run, name)).open("rb") as file:
            facts = Path(file.name).stat()
            state = facts.st_size, facts.st_mtime_ns
            found = name if known.get(name) == state else hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, Problem) as error:
        if run.snapshots.filter(file=name, is_stored=True).exists():  # may have been deleted since the query
            reason = error.strerror if isinstance(error, OSError) else error.fault.cause
            yield f"step {step}: the snapshot's file cannot be read ({reason})"
        return
    if found == name:
        known[name] = state
    else:
        yield f"step {step}: the snapshot's file has another sha256 than its name"
