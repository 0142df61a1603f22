"""Functions that make a release in a workspace and store it once it is complete.

A release contains the model of the last step. If the run has overfitted, it contains the model with the lowest held-out
loss. The organizer may choose either model instead.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from accounts.models import Person
from jobs import queue
from jobs.queue import Kind
from notices import outbox
from notices.models import Event
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.publishing.card import CardFacts
from runs import storage
from runs.access import participants
from runs.models import Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.releases.card_facts import is_card_stale, release_facts
from runs.selectors import best_snapshot, heldout_points, loss_points, overfitting
from runs.states import Why, move
from runs.storage import recipe_file
from runs.timeline import add_action, add_line, add_line_once

logger = logging.getLogger(__name__)


def make_release(run_id: UUID, *, anew: bool = False) -> Release.State:
    """Make a run's release from the wanted snapshot, and finish the run. Return the release's state.

    If that snapshot is not yet verified, do nothing and return PREPARING. If `anew`, replace a ready release once the
    new one is complete.
    """
    release = Release.objects.select_related("run__dataset", "run__organizer", "run__head").get(run=run_id)
    if release.state == Release.State.READY and not anew:
        return Release.State.READY
    run = release.run
    if not anew:
        choose_by_default(run=run)
        release.refresh_from_db(fields=["wanted_index"])
    snapshot = released_snapshot(release)
    if snapshot.state == Snapshot.State.ADMITTED:
        return Release.State.PREPARING
    with faults_to(lambda fault: _fail_release(release, fault), "E312"), storage.workspace() as work:
        known = release_facts(run, snapshot)
        facts = work / "facts.json"
        facts.write_bytes(msgspec.json.encode(known))
        made = run_child(
            [
                "release",
                str(recipe_file(run, work)),
                str(storage.local(storage.snapshot_path(run, snapshot.file))),
                str(storage.local_data(run.dataset)),
                str(work / "out"),
                "--facts",
                str(facts),
            ]
        )
        target = storage.root() / "runs" / run.id.hex / f"release-{work.name}"
        storage.put(work / "out", target)
        if not _keep_release(release, made | _told(known, snapshot), target):
            storage.discard(target)
    release.refresh_from_db()
    return Release.State(release.state)


def _told(known: CardFacts, snapshot: Snapshot) -> dict[str, Any]:
    return {"named": [person.name for person in known.people], "index": snapshot.index, "step": snapshot.step}


@transaction.atomic
def _keep_release(release: Release, made: dict[str, Any], folder: Path) -> bool:
    """Store a finished release in its row.

    Return False if another worker has stored one first, or if a different snapshot is wanted by now.
    """
    before = release.folder
    same = {"folder": before, "wanted_index": release.wanted_index}
    if not Release.objects.filter(pk=release.pk, **same).update(
        state=Release.State.READY,
        folder=storage.relative(folder),
        files=made["files"],
        archive=made["archive"],
        sample=made["sample"],
        named=made["named"],
        index=made["index"],
        step=made["step"],
        fault="",
    ):
        return False
    if before:
        transaction.on_commit(partial(storage.discard, storage.root() / before))
    if move(release.run, Why.RELEASED, finished_at=timezone.now(), waiting_for=""):
        run = release.run
        add_line(run=run, kind="finished", text="The run is finished. The model can be downloaded.")
        path = f"/runs/{run.slug}/"
        outbox.note(Event.FINISHED, participants(run), about=run.run_id, title=run.title, path=path)
    return True


@transaction.atomic
def _fail_release(release: Release, fault: Fault) -> None:
    if fault.code != codes.RELEASE_FAILED:
        fault = Fault.of(codes.RELEASE_FAILED, reason=fault)
    if release.state == Release.State.READY:  # the earlier release remains
        logger.error("run %s: %s", release.run.slug, fault)
        return
    Release.objects.filter(pk=release.pk).update(state=Release.State.FAILED, fault=str(fault))
    Run.objects.filter(pk=release.run_id).update(waiting_for=str(fault))
    add_line_once(run=release.run, kind="failed", text=str(fault))


def released_snapshot(release: Release) -> Snapshot:
    snapshots = release.run.snapshots.order_by("-index")
    chosen = None if release.wanted_index is None else snapshots.filter(index=release.wanted_index).first()
    return chosen or snapshots[0]


def better_snapshot(run: Run) -> Snapshot | None:
    """Return the snapshot with the lowest held-out loss, or None if that is the latest one or cannot be released."""
    newest, best = run.snapshots.order_by("-index").first(), best_snapshot(run)
    if newest is None or newest.heldout_loss is None or best is None or best == newest:
        return None
    return best if _can_be_released(best) else None


def _can_be_released(snapshot: Snapshot) -> bool:
    return snapshot.is_stored and snapshot.state == Snapshot.State.VERIFIED and snapshot.step > 0


def is_stale(release: Release) -> bool:
    """Return True if the release does not contain the wanted snapshot, or if the names on its card are out of date."""
    is_other = release.index is not None and release.index != released_snapshot(release).index
    return is_other or is_card_stale(release)


@transaction.atomic
def choose_by_default(*, run: Run) -> None:
    """Choose the best snapshot for the release if the run has overfitted, otherwise the last one.

    If an organizer has chosen a snapshot, leave that choice unchanged.
    """
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
        queue.put(Kind.REMAKE_RELEASE, run.pk)


@transaction.atomic
def release_best(*, run: Run, best: bool, by: Person | None = None) -> None:
    """Release the model of the best or the last snapshot. Raises Problem E315 if that is not possible."""
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
    add_action(run=run, kind="release", action=f"chose the model of step {step:,} for the release.", by=by)
    queue.put(Kind.REMAKE_RELEASE, run.pk)
