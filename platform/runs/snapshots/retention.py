"""Which snapshots' files stay: the first, the newest two, the newest verified, the best, the one that is released, and
others, evenly spread, so that there are `MOST`.

Newcomers begin at the newest; relays keep averaged bytes since the one before it, so that whoever is on the way from
that one still arrives. The newest verified one is where the next replay begins. The best one, by held-out loss, may be
released instead of the last. The others are for those who want to look back; nothing in a run needs them. A row
outlives its file: held-out losses are read from it.
"""

import os
import time
from collections.abc import Collection, Sequence
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet

from runs import storage
from runs.models import Release, Run, Snapshot
from runs.selectors import best_snapshot

BETWEEN = 16
NEWEST = 2
MOST = 1 + BETWEEN + NEWEST
ASKED_FOR_S = 15 * 60  # so long after somebody has asked for a file (or handed it in) it stays for their next try


def superfluous(places: Sequence[int], *, pinned: Collection[int] = ()) -> list[int]:
    """Of places in the log, ascending, those that may go; the `pinned` ones, a few, may not.

    One after another: always the one whose neighbours are closest to each other, of several the oldest.
    """
    kept = list(places)
    while len(kept) > MOST:
        gaps = [(kept[at + 1] - kept[at - 1], at) for at in range(1, len(kept) - NEWEST) if kept[at] not in pinned]
        del kept[min(gaps)[1]]
    return sorted(set(places) - set(kept))


def thin_snapshots(run_id: UUID, *, now: float | None = None) -> None:
    """Remove what may go, and files that no row names: what an interrupted removal or upload has left."""
    run = Run.objects.get(pk=run_id)
    before = (time.time() if now is None else now) - ASKED_FOR_S
    with transaction.atomic():
        stored = Snapshot.objects.select_for_update().filter(run=run, is_stored=True)
        files = dict(stored.order_by("index").values_list("index", "file"))
        may_go = superfluous(list(files), pinned=_needed(run, stored))
        gone = [place for place in may_go if _asked_for_at(run, files[place]) < before]
        stored.filter(index__in=gone).update(is_stored=False)
    kept = set(Snapshot.objects.filter(run=run, is_stored=True).values_list("file", flat=True))
    for path in storage.snapshots_folder(run).glob("*.safetensors"):
        if path.stem not in kept and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)


def _needed(run: Run, stored: QuerySet[Snapshot]) -> set[int]:
    """The places of the newest verified one, of the best, of the one that is released, and of one to go back to."""
    trusted = stored.filter(state=Snapshot.State.VERIFIED).order_by("-index").values_list("index", flat=True).first()
    best = best_snapshot(run)
    release = Release.objects.filter(run=run).first()
    released = (release.wanted_index, release.index) if release is not None else ()
    found = (trusted, best.index if best is not None else None, *released, run.rollback_index)
    return {place for place in found if place is not None}


def crowded() -> list[UUID]:
    stored = Snapshot.objects.filter(is_stored=True).order_by().values("run").annotate(files=Count("pk"))
    return list(stored.filter(files__gt=MOST).values_list("run", flat=True))


def was_asked_for(run: Run, file: str) -> None:
    """Somebody begins to load a snapshot, or goes on with it. Raises FileNotFoundError where it is gone."""
    os.utime(storage.snapshot_path(run, file))


def _asked_for_at(run: Run, file: str) -> float:
    try:
        return storage.snapshot_path(run, file).stat().st_mtime
    except FileNotFoundError:
        return 0.0
