"""Signed records stored as rows, and the samples that committed records cover.

Records are written only by `keep_sealed` and read only by `sealed_of`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from django.db.models import Q, QuerySet

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.log.records import Entry, RecordHead, Unit, read_head
from runs.models import Coverage, LogEntry, Run, SealedRecord

AT_ONCE = 100  # rows read at a time; each takes about 54 kB of memory
Ranges = list[list[int]]  # [[start, stop), …] in ascending order; ranges neither overlap nor touch
Place = tuple[int, int]  # epoch and shard


def keep_sealed(entry: LogEntry, sealed: Entry) -> None:
    SealedRecord.objects.create(
        entry=entry,
        payload=sealed.head.payload,
        signature=sealed.head.signature,
        contributions=sealed.contributions,
    )


def sealed_of(entry: LogEntry) -> Entry:
    """Return an entry's signed record. This costs a query if the entry was selected without its record."""
    row = entry.sealed
    return Entry(Signed(bytes(row.payload), bytes(row.signature)), bytes(row.contributions))


def last_head(run: Run) -> RecordHead | None:
    """Return the head of the latest record, or None before the first. Raises Problem E218 if it cannot be decoded."""
    rows = SealedRecord.objects.filter(entry__run=run, entry__index=run.head.index)
    row = rows.values_list("payload", "signature").first()
    return read_head(Signed(*map(bytes, row))) if row is not None else None


def with_records(run: Run, *, first: int = 0) -> QuerySet[LogEntry]:
    """Return entries from index `first` on with their records. Iterate in batches, because a record may take 54 kB."""
    return LogEntry.objects.filter(run=run, index__gte=first).select_related("sealed").order_by("index")


def entries_with(run: Run, index: int, digest: str) -> QuerySet[LogEntry]:
    """Return the entries, in the log and on lost branches, for a record with this index and digest: at most one."""
    return LogEntry.objects.filter(Q(index=index) | Q(index__lt=0), run=run, digest=digest)


def lost_records(run: Run, *, after: int = 0) -> QuerySet[LogEntry]:
    """Return the entries on lost branches with their records, oldest first, except for the first `after` of them."""
    return LogEntry.objects.filter(run=run, index__lt=-after).select_related("sealed").order_by("-index")


# Samples in committed updates, as merged ranges per epoch and shard

# A restart restores leases from these rows and lease marks. Reading the log would take longer as the run grows.


def add_range(ranges: Ranges, start: int, stop: int) -> None:
    """Add [start, stop) in place, merging it with any ranges that it touches. Costs two binary searches."""
    first = bisect_left(ranges, start, key=lambda known: known[1])
    behind = bisect_right(ranges, stop, key=lambda known: known[0])
    if first < behind:
        start, stop = min(start, ranges[first][0]), max(stop, ranges[behind - 1][1])
    ranges[first:behind] = [[start, stop]]


def overlaps(ranges: Ranges, start: int, stop: int) -> bool:
    """Return True if any of these ranges contains a sample in [start, stop)."""
    first = bisect_right(ranges, start, key=lambda known: known[1])
    return first < len(ranges) and ranges[first][0] < stop


def add_units(held: dict[Place, Ranges], units: Iterable[Unit]) -> None:
    for unit in units:
        add_range(held.setdefault((unit.epoch, unit.shard), []), unit.start, unit.stop)


def add_committed(run: Run, units: Iterable[Unit]) -> None:
    """Record that units are committed. Call this in the commit's transaction, after the head has moved.

    The function reads and writes only the coverage rows of the units' epochs and shards.
    """
    _add(run, list(units), "ranges")


def leave_out(run: Run, units: Iterable[Unit]) -> None:
    _add(run, list(units), "left_out")


def _add(run: Run, units: list[Unit], column: str) -> None:
    places = {(unit.epoch, unit.shard) for unit in units}
    known = run.coverage.filter(epoch__in={epoch for epoch, _ in places}, shard__in={shard for _, shard in places})
    held = {(row.epoch, row.shard): getattr(row, column) for row in known if (row.epoch, row.shard) in places}
    add_units(held, units)
    rows = [
        Coverage(run=run, epoch=epoch, shard=shard, **{"ranges": [], column: ranges})
        for (epoch, shard), ranges in held.items()
    ]
    Coverage.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["run", "epoch", "shard"], update_fields=[column]
    )


def settled_units(run: Run) -> Iterator[Unit]:
    """Yield all committed samples in ascending order, one unit per merged range."""
    return _units(run, "ranges")


def left_out_units(run: Run) -> Iterator[Unit]:
    return _units(run, "left_out")


def _units(run: Run, column: str) -> Iterator[Unit]:
    rows = run.coverage.order_by("epoch", "shard").values_list("epoch", "shard", column)
    for epoch, shard, ranges in rows.iterator(chunk_size=2000):
        yield from (Unit(epoch, shard, start, stop) for start, stop in ranges)
