"""Checkpoints on the Hub: what a run's organizer wants sent while it trains, once the site has verified it.

Only the newest snapshot that is due is ever sent; those that it has overtaken are not.
"""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
from django.conf import settings
from django.utils import timezone

from peer_agent.protocol.errors import Fault, Problem, codes
from runs import storage
from runs.hub_access import hub_environment
from runs.models import Publication, Release, Run, Snapshot
from runs.processes import turns
from runs.processes.child import ChildStopped, run_child
from runs.processes.disk_full import disk_fault
from runs.releases import hub
from runs.releases.card_facts import checkpoint_facts
from runs.snapshots.verification import newest_verified

logger = logging.getLogger(__name__)

BUSY: Literal["busy"] = "busy"


def waiting() -> list[UUID]:
    """Runs of which a checkpoint is due."""
    return [row.run_id for row in _scheduled() if due(row) is not None]


def forget_delays() -> None:
    """Try everything at once again: for a site that starts."""
    Publication.objects.exclude(checkpoint_retry_at=None).update(checkpoint_retry_at=None)


def due(publication: Publication) -> Snapshot | None:
    """What is to be sent now. Nothing once a release is made of the run, which follows of itself."""
    snapshot = newest_verified(publication.run)
    every = publication.checkpoint_every
    if snapshot is None or not every or Release.objects.filter(run=publication.run_id).exists():
        return None
    return snapshot if snapshot.step // every > publication.checkpoint_step // every else None


def push_checkpoint(run_id: UUID) -> Literal["away", "busy", "done"]:
    """Send what is due. `AWAY`: the Hub did not answer, try again later; `BUSY`: another one is being sent."""
    if _due_now(run_id) is None:
        return "done"
    if not turns.packing.acquire(blocking=False):
        return BUSY
    try:
        found = _due_now(run_id)  # anew: another worker may have sent it
        return _send(*found) if found is not None else "done"
    finally:
        turns.packing.release()


def _due_now(run_id: UUID) -> tuple[Publication, Snapshot] | None:
    """None also where a task that failed comes back later by itself."""
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
    try:
        made = _push(publication, snapshot)
    except ChildStopped:
        logger.info("stopped with the site; sent at the next start")
    except Problem as problem:
        return _failed(publication, problem.fault)
    except OSError as error:
        logger.exception("run %s: step %s was not sent", publication.run.slug, snapshot.step)
        return _failed(publication, disk_fault(error) or Fault.of("E327", reason=type(error).__name__))
    else:
        _published(publication, snapshot, made)
    return "done"


def _push(publication: Publication, snapshot: Snapshot) -> dict[str, Any]:
    """Pack and send it in a child, out of a folder that is gone afterwards."""
    token = hub.token_for(publication)
    with storage.workspace() as work:
        storage.recipe_file(publication.run, work)
        (work / "facts.json").write_bytes(msgspec.json.encode(checkpoint_facts(publication.run, snapshot)))
        (work / "state.safetensors").symlink_to(storage.snapshot_path(publication.run, snapshot.file).resolve())
        return run_child(
            _command(publication, snapshot, work),
            timeout_s=hub.PUSH_S,
            secret=token,
            more=hub_environment(work / "home"),
        )


def _command(publication: Publication, snapshot: Snapshot, work: Path) -> list[str]:
    where = ["--endpoint", settings.HUB_ENDPOINT, "--repository", publication.repository]
    branch = [f"--branch=step-{snapshot.step}"] if publication.in_branches else []
    is_ours = publication.replace or publication.in_branches  # nobody else has put anything into such a branch
    flags = [name for name, is_so in (("--private", publication.private), ("--replace", is_ours)) if is_so]
    known = [f"--known={publication.commit}"] if publication.commit else []
    data = ["--data", str(storage.prepared_folder(publication.run.dataset))]
    return ["hub-snapshot", str(work), *data, *where, *branch, *flags, *known]


def _published(publication: Publication, snapshot: Snapshot, made: dict[str, Any]) -> None:
    """Unless the organizer has asked anew meanwhile: then it is of no interest any more."""
    facts = {"checkpoint_step": snapshot.step, "checkpoint_url": made["url"]}
    well = {"checkpoint_fault": "", "checkpoint_retry_at": None, "failing_since": None}
    commit = {} if publication.in_branches else {"commit": made["commit"]}
    _rows(publication).update(**facts, **well, **commit)


def _failed(publication: Publication, fault: Fault) -> Literal["away", "done"]:
    hub.note_failing(publication)
    delay_s = hub.retry_in_s(publication.run_id)
    is_away = fault.code == codes.HUB_AWAY
    retry = {"checkpoint_retry_at": timezone.now() + timedelta(seconds=delay_s)} if is_away else {}
    is_settled = _rows(publication).update(checkpoint_fault=str(fault), **retry)
    return hub.AWAY if is_away and is_settled else "done"


def _rows(publication: Publication) -> Any:
    same = {name: getattr(publication, name) for name in ("repository", "asked_at")}
    return Publication.objects.filter(pk=publication.pk, **same)
