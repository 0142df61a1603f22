"""Sealed records in their rows: written by `keep_sealed`, read by `sealed_of`, and by nothing else."""

from collections.abc import Iterator

from django.db.models import QuerySet

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.log.records import Entry, RecordHead, read_head
from runs.models import LogEntry, Run, SealedRecord

AT_ONCE = 100  # rows of some 54 kB in memory


def keep_sealed(entry: LogEntry, sealed: Entry) -> None:
    """Store an entry's record."""
    SealedRecord.objects.create(
        entry=entry,
        payload=sealed.head.payload,
        signature=sealed.head.signature,
        contributions=sealed.contributions,
    )


def sealed_of(entry: LogEntry) -> Entry:
    """An entry's signed record; its row is read where it was not selected with the entry."""
    row = entry.sealed
    return Entry(Signed(bytes(row.payload), bytes(row.signature)), bytes(row.contributions))


def last_head(run: Run) -> RecordHead | None:
    """The head of the newest entry's record, without its contributions; None before the first. Raises Problem E218."""
    rows = SealedRecord.objects.filter(entry__run=run, entry__index=run.head.index)
    row = rows.values_list("payload", "signature").first()
    return read_head(Signed(*map(bytes, row))) if row is not None else None


def with_records(run: Run, *, first: int = 0) -> QuerySet[LogEntry]:
    """Entries from an index on, in order, each with its record. Iterate in parts: one record may have 54 kB."""
    return LogEntry.objects.filter(run=run, index__gte=first).select_related("sealed").order_by("index")


def each_sealed(run: Run, *, first: int = 0) -> Iterator[tuple[LogEntry, Entry]]:
    """The same, with a bounded number of records in memory."""
    for entry in with_records(run, first=first).iterator(chunk_size=AT_ONCE):
        yield entry, sealed_of(entry)
