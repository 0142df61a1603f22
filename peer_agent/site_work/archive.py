"""Copies averaged bytes from relays' logs into the site's archive, which is laid out like a relay's folder.

The bytes are compared with the roots in the signed records, so an archive is as good as any relay's log.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from peer_agent.averaging.assembly import leaves_of_span, span_sizes, spans_match
from peer_agent.averaging.update_log import read_span, span_path, write_span
from peer_agent.protocol.errors import disk_errors
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.site_work.relay_logs import RelayLogs


class Archived(Struct, frozen=True):
    """A record with all its spans in the archive. `size`: how many bytes the archive has grown by."""

    index: int
    size: int


def archive(
    records: Iterable[RecordHead], folder: Path, logs: Sequence[Path], relays: RelayLogs | None
) -> Iterator[Archived]:
    """Copy each record's spans into the archive, and yield the record's index and size.

    Stop before the first record with a span that no log has. `folder`: the run's archive. `logs`: log folders of relays
    on this machine, tried first. Raises Problem E106 if the disk fails.
    """
    with disk_errors(folder):
        (folder / "spans").mkdir(parents=True, exist_ok=True)
    for record in records:
        size = 0
        for entry in record.spans:
            target = span_path(folder, record.index, entry.span)
            if _is_whole(target, entry):
                continue
            if not (_is_linked(record, entry, target, logs) or _is_fetched(record, entry, target, relays)):
                return
            size += target.stat().st_size
        yield Archived(record.index, size)


def _is_whole(path: Path, entry: SpanEntry) -> bool:
    file = read_span(path)
    return file is not None and spans_match(entry, file.leaves)


def _is_linked(record: RecordHead, entry: SpanEntry, target: Path, logs: Sequence[Path]) -> bool:
    """Hard-link a span's file from a relay's log on this machine, or copy it if that is impossible.

    Return False if no log has the whole span.
    """
    for log in logs:
        source = span_path(log, record.index, entry.span)
        if not _is_whole(source, entry):
            continue
        with disk_errors(target), suppress(FileNotFoundError):  # the relay may delete its file at any time
            draft = target.with_suffix(".part")
            draft.unlink(missing_ok=True)
            try:
                os.link(source, draft)
            except FileNotFoundError:
                raise
            except OSError:  # another disk, or one without hard links
                shutil.copyfile(source, draft)
            draft.replace(target)
            return True
    return False


def _is_fetched(record: RecordHead, entry: SpanEntry, target: Path, relays: RelayLogs | None) -> bool:
    """Fetch a span from a relay over the network. Return False if no relay has it, or if there are no relays."""
    grid = Grid(record.elements, record.chunk_elements)

    def take(payloads: Sequence[bytes]) -> bool:
        leaves = leaves_of_span(record.codec, grid, entry, payloads)
        if leaves is None:
            return False
        write_span(target, leaves, payloads)
        return True

    return relays is not None and relays.fetch(record.index, entry.span, entry.first, span_sizes(record, entry), take)
