"""Which snapshot's model is released: the last step's, or the best by held-out loss where the run has overfitted.

Its organizer may decide otherwise.
"""

from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import queue
from runs.models import Release, Run, Snapshot
from runs.progress import overfitting
from runs.queue import TaskName
from runs.releases.card_facts import is_card_stale
from runs.selectors import best_snapshot, heldout_points, loss_points
from runs.timeline import add_action, add_line


def released_snapshot(release: Release) -> Snapshot:
    """The one whose model is to be in the release."""
    snapshots = release.run.snapshots.order_by("-index")
    chosen = None if release.wanted_index is None else snapshots.filter(index=release.wanted_index).first()
    return chosen or snapshots[0]


def better_snapshot(run: Run) -> Snapshot | None:
    """The best one by held-out loss, where it is not the newest and can be released; none until that is measured."""
    newest, best = run.snapshots.order_by("-index").first(), best_snapshot(run)
    if newest is None or newest.heldout_loss is None or best is None or best == newest:
        return None
    return best if _can_be_released(best) else None


def _can_be_released(snapshot: Snapshot) -> bool:
    return snapshot.is_stored and snapshot.state == Snapshot.State.VERIFIED and snapshot.step > 0


def is_stale(release: Release) -> bool:
    """Whether its card names others than agree now, or another snapshot's model is wanted than it holds."""
    is_other = release.index is not None and release.index != released_snapshot(release).index
    return is_other or is_card_stale(release)


@transaction.atomic
def choose_by_default(*, run: Run) -> None:
    """Want the best snapshot's model where the run has overfitted, else the last one's; what was chosen stays."""
    release = Release.objects.select_for_update().filter(run=run, is_chosen=False).first()
    if release is None:
        return
    best = best_snapshot(run) if overfitting(loss_points(run), heldout_points(run)) else None
    wanted = best if best is not None and _can_be_released(best) else None
    index = wanted.index if wanted is not None else None
    if release.wanted_index == index:
        return
    release.wanted_index = index
    release.save(update_fields=["wanted_index"])
    step = wanted.step if wanted is not None else run.head.step
    add_line(run=run, kind="release", text=f"The model of step {step:,} is released: it is the best on held-out data.")
    if release.state == Release.State.READY:
        queue.enqueue_on_commit(TaskName.REMAKE_RELEASE, run.pk)


@transaction.atomic
def release_best(*, run: Run, best: bool, by: Person | None = None) -> None:
    """Release the best snapshot's model, or again the last one's. Asked twice, it is done once.

    Raises Problem E315 of a run that is not finished, or whose best snapshot is its last or is not kept.
    """
    release = Release.objects.select_for_update().filter(run=run, state=Release.State.READY).first()
    wanted = better_snapshot(run) if best else None
    if release is None or (best and wanted is None):
        raise Problem.of("E315", state=run.state)
    index, was_chosen = wanted.index if wanted is not None else None, release.is_chosen
    if release.wanted_index == index and was_chosen:
        return
    is_other, release.wanted_index, release.is_chosen = release.wanted_index != index, index, True
    release.save(update_fields=["wanted_index", "is_chosen"])
    if not is_other:
        return
    step = wanted.step if wanted is not None else run.head.step
    add_action(run=run, kind="release", deed=f"chose the model of step {step:,} for the release.", by=by)
    queue.enqueue_on_commit(TaskName.REMAKE_RELEASE, run.pk)
