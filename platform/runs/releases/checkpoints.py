"""Checkpoints on the Hub, sent during training once they are verified. Only the newest one that is due is sent."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.utils import timezone

from peer_agent.protocol.errors import Fault, codes
from runs import processes, storage
from runs.hub_access import hub_environment
from runs.models import Publication, Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.releases import publishing
from runs.releases.card_facts import checkpoint_facts
from runs.snapshots.verification import newest_verified

BUSY: Literal["busy"] = "busy"


def waiting() -> list[UUID]:
    return [row.run_id for row in _scheduled() if due(row) is not None]


def forget_delays() -> None:
    """Clear the retry delays. Called when the site starts."""
    Publication.objects.exclude(checkpoint_retry_at=None).update(checkpoint_retry_at=None)


def due(publication: Publication) -> Snapshot | None:
    """Return the snapshot to send now, or None. Once a release exists, the release is published instead."""
    snapshot = newest_verified(publication.run)
    every = publication.checkpoint_every
    if snapshot is None or not every or Release.objects.filter(run=publication.run_id).exists():
        return None
    return snapshot if snapshot.step // every > publication.checkpoint_step // every else None


def push_checkpoint(run_id: UUID) -> Literal["away", "busy", "done"]:
    """Send the due checkpoint. Return `AWAY` if the Hub did not answer, `BUSY` if another one is being sent."""
    if _due_now(run_id) is None:
        return "done"
    with processes.turn(processes.packing) as is_mine:
        if not is_mine:
            return BUSY
        found = _due_now(run_id)  # check again: another worker may have sent it
        return _send(*found) if found is not None else "done"


def _due_now(run_id: UUID) -> tuple[Publication, Snapshot] | None:
    """Return the publication and the snapshot to send now, or None if none is due or a retry must wait."""
    publication = _scheduled().filter(run=run_id).first()
    if publication is None:
        return None
    is_put_off = publication.checkpoint_retry_at is not None and publication.checkpoint_retry_at > timezone.now()
    snapshot = None if is_put_off else due(publication)
    return (publication, snapshot) if snapshot is not None else None


def _scheduled() -> Any:
    going_on = (Run.State.OPEN, Run.State.PAUSED)
    rows = Publication.objects.filter(checkpoint_every__gt=0, run__state__in=going_on)
    return rows.select_related("run__organizer", "run__dataset", "run__head", "asked_by")


def _send(publication: Publication, snapshot: Snapshot) -> Literal["away", "done"]:
    faults: list[Fault] = []
    with faults_to(faults.append, "E327"):
        _published(publication, snapshot, _push(publication, snapshot))
    return _failed(publication, faults[0]) if faults else "done"


def _push(publication: Publication, snapshot: Snapshot) -> dict[str, Any]:
    """Pack and send a checkpoint in a child process, from a temporary folder."""
    token = publishing.token_for(publication)
    with storage.workspace() as work:
        storage.recipe_file(publication.run, work)
        (work / "facts.json").write_bytes(msgspec.json.encode(checkpoint_facts(publication.run, snapshot)))
        (work / "state.safetensors").symlink_to(storage.snapshot_path(publication.run, snapshot.file).resolve())
        return run_child(
            _command(publication, snapshot, work),
            timeout_s=publishing.PUSH_S,
            secret=token,
            more=hub_environment(work / "home"),
        )


def _command(publication: Publication, snapshot: Snapshot, work: Path) -> list[str]:
    where = ["--endpoint", settings.HUB_ENDPOINT, "--repository", publication.repository]
    branch = [f"--branch=step-{snapshot.step}"] if publication.in_branches else []
    is_ours = publication.replace or publication.in_branches  # only the site writes to such a branch
    flags = [name for name, is_so in (("--private", publication.private), ("--replace", is_ours)) if is_so]
    known = [f"--known={publication.commit}"] if publication.commit else []
    data = ["--data", str(storage.prepared_folder(publication.run.dataset))]
    return ["hub-snapshot", str(work), *data, *where, *branch, *flags, *known]


def _published(publication: Publication, snapshot: Snapshot, made: dict[str, Any]) -> None:
    """Record that a checkpoint was sent, unless the organizer has changed the request meanwhile."""
    facts = {"checkpoint_step": snapshot.step, "checkpoint_url": made["url"]}
    well = {"checkpoint_fault": "", "checkpoint_retry_at": None, "failing_since": None}
    commit = {} if publication.in_branches else {"commit": made["commit"]}
    _rows(publication).update(**facts, **well, **commit)


def _failed(publication: Publication, fault: Fault) -> Literal["away", "done"]:
    publishing.note_failing(publication)
    delay_s = publishing.retry_in_s(publication.run_id)
    is_away = fault.code == codes.HUB_AWAY
    retry = {"checkpoint_retry_at": timezone.now() + timedelta(seconds=delay_s)} if is_away else {}
    is_settled = _rows(publication).update(checkpoint_fault=str(fault), **retry)
    return publishing.AWAY if is_away and is_settled else "done"


def _rows(publication: Publication) -> Any:
    same = {name: getattr(publication, name) for name in ("repository", "asked_at")}
    return Publication.objects.filter(pk=publication.pk, **same)
