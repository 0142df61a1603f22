"""A release: what people download of a finished run, made in a workspace and kept when it is whole."""

import logging
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from notices import outbox
from notices.models import Event
from peer_agent.protocol.errors import Fault, codes
from peer_agent.publishing.card import CardFacts
from runs import storage
from runs.access import participants
from runs.models import Release, Run, Snapshot
from runs.processes.child import run_child
from runs.processes.faults import faults_to
from runs.releases.card_facts import release_facts
from runs.releases.choosing import choose_by_default, released_snapshot
from runs.states import Why, move
from runs.storage import recipe_file
from runs.timeline import add_line, add_line_once

logger = logging.getLogger(__name__)


def make_release(run_id: UUID, *, anew: bool = False) -> Release.State:
    """Make what people download from the snapshot that is wanted, and how that went. Then the run is finished.

    Nothing is made, and the release stays in preparation, while that snapshot is not verified.

    `anew`: also where there is one, which is offered until the other is whole.
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
                str(storage.snapshot_path(run, snapshot.file)),
                str(storage.prepared_folder(run.dataset)),
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
    """What the row knows of a release beside its files."""
    return {"named": [person.name for person in known.people], "index": snapshot.index, "step": snapshot.step}


@transaction.atomic
def _keep_release(release: Release, made: dict[str, Any], folder: Path) -> bool:
    """False where another worker was faster, or another snapshot is wanted by now."""
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
        transaction.on_commit(lambda: shutil.rmtree(storage.root() / before, ignore_errors=True))
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
    if release.state == Release.State.READY:  # there still is one
        logger.error("run %s: %s", release.run.slug, fault)
        return
    Release.objects.filter(pk=release.pk).update(state=Release.State.FAILED, fault=str(fault))
    Run.objects.filter(pk=release.run_id).update(waiting_for=str(fault))
    add_line_once(run=release.run, kind="failed", text=str(fault))
