"""The archive of runs' logs: averaged bytes that the site keeps itself, so that a relay may lose or delete its own.

A job copies the averages of a live run's new entries from relays; the run's host requests it. A relay may delete
averages once they are in the archive and a verified snapshot covers them. Replays read the archive first, and newcomers
fetch from it what no relay has. The archive of a run is limited by MANYHANDS_ARCHIVE_GB; averages that no verified
snapshot covers always stay.
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

TURN_S = 20.0  # seconds after which the next run has its turn


def archive_next(run_id: UUID) -> Fault | Literal["more", "done"]:
    """Copy the averages of entries that are not in the archive yet.

    Return "more" if the time of one turn was not enough. Return Problem E341's fault if no relay has an entry's
    averages; the coordinator then asks for a snapshot, since no machine can follow the log there. Raises Problem E106.
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
    """Copy entries until one is not available or time is over. Return the index of the last archived entry.

    An entry that is not available does not matter if a verified snapshot covers it.
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
    """Delete the oldest averages that a verified snapshot covers, until the archive is within its limit."""
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
