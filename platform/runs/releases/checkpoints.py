"""Verified checkpoints sent to the Hub during training. If several are due, only the latest is sent."""

from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings

from peer_agent.protocol.errors import Fault, codes
from runs import storage
from runs.hub_access import hub_environment
from runs.models import Publication, Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.releases import publishing
from runs.releases.card_facts import checkpoint_facts
from runs.snapshots.verification import newest_verified


def due(publication: Publication) -> Snapshot | None:
    """Return the snapshot to send to the Hub now, or None. Once a run has a release, no more checkpoints are due."""
    snapshot = newest_verified(publication.run)
    every = publication.checkpoint_every
    if snapshot is None or not every or Release.objects.filter(run=publication.run_id).exists():
        return None
    return snapshot if snapshot.step // every > publication.checkpoint_step // every else None


def push_checkpoint(run_id: UUID) -> Fault | None:
    """Send a run's checkpoint to the Hub if one is due. If the Hub cannot be reached, return the error for a retry."""
    publication = _scheduled().filter(run=run_id).first()
    snapshot = due(publication) if publication is not None else None
    return _send(publication, snapshot) if snapshot is not None else None


def _scheduled() -> Any:
    going_on = (Run.State.OPEN, Run.State.PAUSED)
    rows = Publication.objects.filter(checkpoint_every__gt=0, run__state__in=going_on)
    return rows.select_related("run__organizer", "run__dataset", "run__head", "asked_by")


def _send(publication: Publication, snapshot: Snapshot) -> Fault | None:
    faults: list[Fault] = []
    with faults_to(faults.append, "E327"):
        _published(publication, snapshot, _push(publication, snapshot))
    return _failed(publication, faults[0]) if faults else None


def _push(publication: Publication, snapshot: Snapshot) -> dict[str, Any]:
    """Pack and send a checkpoint from a temporary folder, in a child process."""
    token = publishing.token_for(publication)
    with storage.workspace() as work:
        storage.recipe_file(publication.run, work)
        (work / "facts.json").write_bytes(msgspec.json.encode(checkpoint_facts(publication.run, snapshot)))
        state = storage.local(storage.snapshot_path(publication.run, snapshot.file))
        (work / "state.safetensors").symlink_to(state.resolve())
        return run_child(
            _command(publication, snapshot, work),
            timeout_s=publishing.PUSH_S,
            secret=token,
            more=hub_environment(work / "home"),
        )


def _command(publication: Publication, snapshot: Snapshot, work: Path) -> list[str]:
    where = ["--endpoint", settings.HUB_ENDPOINT, "--repository", publication.repository]
    branch = [f"--branch=step-{snapshot.step}"] if publication.in_branches else []
    is_ours = publication.replace or publication.in_branches  # nobody but the site writes to checkpoint branches
    flags = [name for name, is_so in (("--private", publication.private), ("--replace", is_ours)) if is_so]
    known = [f"--known={publication.commit}"] if publication.commit else []
    data = ["--data", str(storage.local_data(publication.run.dataset))]
    return ["hub-snapshot", str(work), *data, *where, *branch, *flags, *known]


def _published(publication: Publication, snapshot: Snapshot, made: dict[str, Any]) -> None:
    """Record that a checkpoint was sent, unless the organizer has since changed the request."""
    facts = {"checkpoint_step": snapshot.step, "checkpoint_url": made["url"]}
    well = {"checkpoint_fault": "", "failing_since": None}
    commit = {} if publication.in_branches else {"commit": made["commit"]}
    _rows(publication).update(**facts, **well, **commit)


def _failed(publication: Publication, fault: Fault) -> Fault | None:
    publishing.note_failing(publication)
    is_settled = _rows(publication).update(checkpoint_fault=str(fault))
    return fault if fault.code == codes.HUB_AWAY and is_settled else None


def _rows(publication: Publication) -> Any:
    same = {name: getattr(publication, name) for name in ("repository", "asked_at")}
    return Publication.objects.filter(pk=publication.pk, **same)
