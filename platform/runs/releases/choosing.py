"""Which snapshot's model is released: the last step's, or the best by held-out loss where the organizer prefers it."""

from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from runs import queue
from runs.models import Release, Run, Snapshot
from runs.queue import TaskName
from runs.releases.card_facts import is_card_stale
from runs.selectors import best_snapshot
from runs.timeline import add_action


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
    return best if best.is_stored and best.state in Snapshot.TRUSTED and best.step else None


def is_stale(release: Release) -> bool:
    """Whether its card names others than agree now, or another snapshot's model is wanted than it holds."""
    is_other = release.index is not None and release.index != released_snapshot(release).index
    return is_other or is_card_stale(release)


@transaction.atomic
def release_best(*, run: Run, best: bool, by: Person | None = None) -> None:
    """Release the best snapshot's model, or again the last one's. Asked twice, it is done once.

    Raises Problem E315 of a run that is not finished, or whose best snapshot is its last or is not kept.
    """
    release = Release.objects.select_for_update().filter(run=run, state=Release.State.READY).first()
    wanted = better_snapshot(run) if best else None
    if release is None or (best and wanted is None):
        raise Problem.of("E315", state=run.state)
    index = wanted.index if wanted is not None else None
    if release.wanted_index == index:
        return
    release.wanted_index = index
    release.save(update_fields=["wanted_index"])
    step = wanted.step if wanted is not None else run.head.step
    add_action(run=run, kind="release", deed=f"chose the model of step {step:,} for the release.", by=by)
    queue.enqueue_on_commit(TaskName.REMAKE_RELEASE, run.pk)
