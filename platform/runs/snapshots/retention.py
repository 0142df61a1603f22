"""Retention of snapshot files: a run keeps at most `MOST`. Some must stay; the rest are spread evenly over the log.

Files that are still needed stay. New machines start from the latest snapshot. Relays store averaged bytes from the
snapshot before it onwards, so that machines that started from that one can catch up. The next replay starts from the
latest verified snapshot. The snapshot with the best held-out loss may be released. A requested rollback needs its
target. All other snapshots are merely history. A snapshot's row outlives its file, because pages read held-out losses
from the row.
"""

import os
import time
from collections.abc import Collection, Sequence
from uuid import UUID

from django.core.cache import cache
from django.db import transaction
from django.db.models import QuerySet

from runs import bucket, storage
from runs.models import Release, Run, Snapshot
from runs.selectors import best_snapshot

BETWEEN = 16
NEWEST = 2
MOST = 1 + BETWEEN + NEWEST
ASKED_FOR_S = 15 * 60  # the site keeps a requested or uploaded file this long, in case the machine retries


def superfluous(places: Sequence[int], *, pinned: Collection[int] = ()) -> list[int]:
    """Return the places in the log whose snapshot files can be deleted, so that `MOST` remain.

    `places` are log indexes in ascending order, and `pinned` ones must stay. Places are removed one at a time: always
    the one whose neighbors are closest together. In a tie, the oldest goes.
    """
    kept = list(places)
    while len(kept) > MOST:
        gaps = [(kept[at + 1] - kept[at - 1], at) for at in range(1, len(kept) - NEWEST) if kept[at] not in pinned]
        del kept[min(gaps)[1]]
    return sorted(set(places) - set(kept))


def thin_snapshots(run_id: UUID, *, now: float | None = None) -> None:
    """Delete a run's superfluous snapshot files, and files that interrupted jobs left without a row."""
    run = Run.objects.filter(pk=run_id).first()
    if run is None:  # it became a draft again and was deleted
        storage.remove(storage.root() / "runs" / run_id.hex)
        return
    before = (time.time() if now is None else now) - ASKED_FOR_S
    with transaction.atomic():
        stored = Snapshot.objects.select_for_update().filter(run=run, is_stored=True)
        files = dict(stored.order_by("index").values_list("index", "file"))
        may_go = superfluous(list(files), pinned=_needed(run, stored))
        gone = [place for place in may_go if _asked_for_at(run, files[place]) < before]
        stored.filter(index__in=gone).update(is_stored=False)
    kept = set(Snapshot.objects.filter(run=run, is_stored=True).values_list("file", flat=True))
    for name, facts in storage.files(folder := storage.snapshots_folder(run)).items():
        if name.removesuffix(".safetensors") not in kept and facts.at < before:
            storage.remove(folder / name)


def _needed(run: Run, stored: QuerySet[Snapshot]) -> set[int]:
    trusted = stored.filter(state=Snapshot.State.VERIFIED).order_by("-index").values_list("index", flat=True).first()
    best = best_snapshot(run)
    release = Release.objects.filter(run=run).first()
    released = (release.wanted_index, release.index) if release is not None else ()
    found = (trusted, best.index if best is not None else None, *released, run.rollback_index)
    return {place for place in found if place is not None}


def was_asked_for(run: Run, file: str) -> None:
    """Record that a machine has just requested a snapshot's file, so that the file is kept for a retry.

    Raises FileNotFoundError if the site has no bucket and the file is not on its disk.
    """
    if bucket.is_on():  # another process may read the record
        cache.set(f"asked-for-{file}", time.time(), ASKED_FOR_S)
    else:
        os.utime(storage.snapshot_path(run, file))


def _asked_for_at(run: Run, file: str) -> float:
    if bucket.is_on():
        return float(cache.get(f"asked-for-{file}", 0.0))
    try:
        return storage.snapshot_path(run, file).stat().st_mtime
    except FileNotFoundError:
        return 0.0
