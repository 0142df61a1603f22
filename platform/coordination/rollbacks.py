"""A run goes back to a snapshot: the entry that says so, and all that follows from it, in one transaction (rule 15).

The snapshot's state gets a place of its own at that entry. By that, newcomers, replicas that follow and replays begin
where they always do, at the newest snapshot, and nothing that is undone lies behind it.
"""

import logging

from django.db import transaction
from django.utils import timezone

from coordination.models import Election, PendingSnapshot
from peer_agent.protocol.coordinator.events import Target
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.log.records import Entry, Record, digest_of
from runs import queue, storage
from runs.ledger.records import keep_sealed
from runs.models import Head, LogEntry, Publication, Run, Snapshot
from runs.queue import TaskName
from runs.snapshots.state_check import Restated, restate
from runs.timeline import ROLLED_BACK, add_line

log = logging.getLogger(__name__)

KEPT = ("state", "state_digest", "created_at", "verified_at", "heldout_loss", "heldout_figures", "written")
DONE = "Rolled back to step {step:,}: {undone} undone. Credit stays."


class Stale(Exception):
    """The head is not where this host left it."""


class Refused(Exception):
    """Nobody wants to go back to that any more, or nobody can."""


def target_of(run: Run) -> Target | None:
    """Where its organizer wants to go back to."""
    if run.rollback_index is None:
        return None
    found = run.snapshots.filter(index=run.rollback_index).first()
    return Target(found.index, found.step, found.file) if found is not None else None


def last_index(run: Run) -> int:
    """The index of the last entry that undid others; 0 where there is none."""
    found = run.log.filter(kind=LogEntry.Kind.ROLLBACK).order_by("-index").values_list("index", flat=True).first()
    return found or 0


def write(run: Run, sealed: Entry, record: Record) -> None:
    """The state at its new place, then the rows. Raises Stale, Refused and DatabaseError; then no row is changed."""
    assert record.restored
    target = run.snapshots.filter(index=record.restored.index, file=record.restored.file, is_undone=False).first()
    if target is None:  # it was written already, and its answer lost; or something else was undone
        Run.objects.filter(pk=run.pk, rollback_index=record.restored.index).update(rollback_index=None)
        raise Stale
    try:
        with storage.workspace() as work:
            source, place = storage.snapshot_path(run, target.file), record.index
            made = restate(source, work / "state", step=target.step, index=place, log_digest=digest_of(sealed))
            storage.put(work / "state", storage.snapshot_path(run, made.file))
    except (OSError, Problem) as error:
        log.exception("run %s: not rolled back", run.slug)
        _give_up(run, target, str(getattr(error, "strerror", "") or error))
        raise Refused from error
    with transaction.atomic():
        _write(run, sealed, record, target, made)


def _give_up(run: Run, target: Snapshot, reason: str) -> None:
    """It would go wrong each second: its organizer is told instead."""
    fault = Fault.of("E413", step=f"{target.step:,}", reason=reason)
    with transaction.atomic():
        if Run.objects.filter(pk=run.pk, rollback_index=target.index).update(rollback_index=None):
            add_line(run=run, kind="failed", text=str(fault))


def _write(run: Run, sealed: Entry, record: Record, target: Snapshot, made: Restated) -> None:
    step, place = Head.objects.values_list("step", flat=True).get(run=run), {"index": record.index}
    head = Head.objects.filter(run=run, index=record.index - 1, digest=record.previous, fence=record.fence)
    if head.update(**place, step=target.step, digest=digest_of(sealed)) != 1:
        raise Stale
    if not Run.objects.filter(pk=run.pk, rollback_index=target.index).update(rollback_index=None):
        raise Refused
    _undo(run, target)
    entry = LogEntry.objects.create(
        run=run,
        kind=LogEntry.Kind.ROLLBACK,
        step=target.step,
        digest=digest_of(sealed),
        state_digest=target.state_digest,
        exact=True,
        **place,
        **dict.fromkeys(("loss", "tokens", "samples", "peers", "duration_s", "attempts"), 0),
    )
    keep_sealed(entry, sealed)
    facts = {name: getattr(target, name) for name in KEPT}
    Snapshot.objects.create(run=run, step=target.step, digest=entry.digest, **place, **made._asdict(), **facts)
    undone = step - target.step
    count = f"the {undone:,} steps after it are" if undone != 1 else "the step after it is"
    add_line(run=run, kind=ROLLED_BACK, text=DONE.format(step=target.step, undone=count))
    for task in (TaskName.MEASURE_HELDOUT, TaskName.THIN_SNAPSHOTS):
        queue.enqueue_on_commit(task, run.pk)


def _undo(run: Run, target: Snapshot) -> None:
    """Rows stay, and say that they are undone; what was still to come of those steps is not awaited any more."""
    run.log.filter(index__gt=target.index).update(is_undone=True)
    run.snapshots.filter(index__gte=target.index).update(is_undone=True)
    run.replays.filter(state_digest="").delete()
    Election.objects.filter(run=run).delete()
    PendingSnapshot.objects.filter(run=run).update(expires=timezone.now())
    Publication.objects.filter(run=run, checkpoint_step__gt=target.step).update(checkpoint_step=target.step)
