"""The archive of runs' logs. The site keeps copies of averaged gradients, in case relays lose or delete their own.

While a run is live, its host requests a job that copies the averages of new log entries from relays. A relay may delete
averages once they are in the archive and a verified snapshot covers them. Replays read the archive first. New machines
fetch averages from it that no relay has. MANYHANDS_ARCHIVE_GB limits the size of each run's archive, but averages that
no verified snapshot covers are never deleted.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from uuid import UUID

from django.conf import settings
from django.db.models import F

from accounts.keys import site_key
from peer_agent.protocol.credentials import public_bytes
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.log.records import RecordHead, read_head
from runs import storage
from runs.ledger.records import AT_ONCE, sealed_of, with_records
from runs.models import Head, Run
from runs.snapshots.replay import Reader, log_folders
from runs.snapshots.verification import verified_up_to

TURN_S = 20.0  # seconds that a job spends on one run before other runs have their turn


def archive_next(run_id: UUID) -> Fault | Literal["more", "done"]:
    """Copy the averages of a run's log entries that are not in the archive yet.

    Return "more" if one turn was too short. Return error E341 if no relay has an entry's averages. The coordinator then
    requests a snapshot, because no machine can follow the log past that entry. Raises Problem E106 if the disk is full
    or not writable.
    """
    run = Run.objects.select_related("head").filter(pk=run_id).first()
    if run is None or run.head.archived >= run.head.index:
        return "done"
    until = time.monotonic() + TURN_S
    at = _copy(run, until)
    if at < run.head.index and time.monotonic() >= until:
        return "more"
    gap = 0 if at == run.head.index else at + 1
    Head.objects.filter(run=run).update(gap=gap)
    _thin(run)
    return Fault.of("E341", step=gap) if gap else "done"


def _copy(run: Run, until: float) -> int:
    """Copy entries' averages until the time `until`, or until no relay has the next ones.

    Return the index of the last entry archived or skipped. An entry that no relay has is skipped if a verified snapshot
    covers it.
    """
    from peer_agent.site_work.archive import archive  # imports NumPy, which only the worker needs
    from peer_agent.site_work.relay_logs import RelayLogs

    at, covered, grown = run.head.archived, verified_up_to(run), 0
    try:
        with storage.workspace() as work:
            reader = Reader(run, work / "reach")
            with RelayLogs(reader.path, reader.key, public_bytes(site_key())) as relays:
                while at < run.head.index and time.monotonic() < until:
                    for made in archive(_records(run, at + 1), storage.archive_folder(run), log_folders(run), relays):
                        grown += made.size
                        _keep(run, made.index)
                        at = made.index
                        if time.monotonic() >= until:
                            break
                        reader.renew()
                    else:
                        if at >= min(covered, run.head.index):
                            break
                        at += 1
    finally:
        Head.objects.filter(run=run).update(archived=at, archive_bytes=F("archive_bytes") + grown)
    return at


def _keep(run: Run, index: int) -> None:
    for path in (storage.archive_folder(run) / "spans").glob(f"{index:08d}-*.span"):
        storage.keep(path)


def _records(run: Run, first: int) -> Iterator[RecordHead]:
    while entries := list(with_records(run, first=first)[:AT_ONCE]):
        yield from (read_head(sealed_of(entry).head) for entry in entries)
        first = entries[-1].index + 1


def _thin(run: Run) -> None:
    """Delete a run's oldest averages that a verified snapshot covers, until its archive is within the limit."""
    limit = settings.ARCHIVE_BYTES
    size = Head.objects.values_list("archive_bytes", flat=True).get(run=run)
    if size <= limit:
        return
    covered = verified_up_to(run)
    folder = storage.archive_folder(run) / "spans"
    for name, facts in sorted(storage.files(folder).items()):
        if not name.endswith(".span"):
            continue
        if size <= limit or int(name.split("-")[0]) > covered:
            break
        storage.remove(folder / name)
        size -= facts.size
    Head.objects.filter(run=run).update(archive_bytes=size)


def archived_span(run: Run, index: int, span: int) -> Path:
    return storage.archive_folder(run) / "spans" / f"{index:08d}-{span}.span"
