"""Going back to a snapshot: what may be chosen, and that it is wanted. Whoever hosts the run does it in a second."""

from typing import Any

from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import storage
from runs.lifecycle.ending import ending_word
from runs.models import Run, Snapshot
from runs.selectors import best_snapshot
from runs.states import LIVE
from runs.timeline import ROLLING_BACK, add_action


def targets(run: Run) -> list[Snapshot]:
    """What the run can go back to, the newest first: verified states before its present one whose files are there."""
    rows = run.snapshots.filter(
        state=Snapshot.State.VERIFIED, is_stored=True, is_undone=False, step__lt=run.head.step
    ).order_by("-index")
    return [row for row in rows if storage.snapshot_path(run, row.file).is_file()]


def rollback_facts(run: Run) -> dict[str, Any]:
    """What a page shows of it: snapshots to choose from, the best of them, and one that is being gone back to."""
    if not can_roll_back(run):
        return {}
    found = run.snapshots.filter(index=run.rollback_index).first() if run.rollback_index is not None else None
    return {"targets": targets(run), "best": best_snapshot(run), "rolling_to": found}


def can_roll_back(run: Run) -> bool:
    """Whether its state allows it."""
    return run.state in LIVE and run.wanted != Run.Wanted.FINISHED


@transaction.atomic
def ask_rollback(*, run: Run, index: int, by: Person | None = None) -> None:
    """Have the run go on from the snapshot of this entry. Raises Problem E412, E413; asked twice, it is done once."""
    now = Run.objects.select_for_update().select_related("head").get(pk=run.pk)
    if now.rollback_index == index:
        return
    if not can_roll_back(now):
        raise Problem.of("E412", reason=f"the run is {ending_word(now)}")
    if now.rollback_index is not None:
        raise Problem.of("E412", reason="it is being rolled back")
    target = next((row for row in targets(now) if row.index == index), None)
    if target is None:
        raise Problem.of("E412", reason="this snapshot is not kept any more, or its steps were undone")
    Run.objects.filter(pk=run.pk).update(rollback_index=index)
    add_action(run=run, kind=ROLLING_BACK, deed=f"is rolling the run back to step {target.step:,}.", by=by)
