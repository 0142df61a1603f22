"""Held-out losses of snapshots. The site measures them when idle, one at a time, for a run's newest snapshot only."""

import logging
from collections.abc import Callable
from enum import StrEnum
from uuid import UUID

from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery

from peer_agent.protocol.errors import Fault
from runs import processes, storage
from runs.models import Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.snapshots.verification import unverified
from runs.storage import recipe_file

TIMEOUT_S = 1800
LONGEST = 2000  # characters of a text that are stored
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

logger = logging.getLogger(__name__)


class Outcome(StrEnum):
    DONE = "done"  # done, or nothing to do
    BUSY = "busy"  # try again later


def unmeasured() -> QuerySet[Snapshot]:
    """Return each run's newest snapshot if it has no held-out loss yet."""
    newest = Snapshot.objects.filter(run=OuterRef("run")).order_by("-index").values("pk")[:1]
    waiting = Snapshot.objects.filter(pk=Subquery(newest), heldout_loss=None, step__gt=0)
    return waiting.filter(run__dataset__heldout__isnull=False)


def measure_newest(run_id: UUID, then: Callable[..., object] | None = None) -> Outcome:
    """Measure a run's newest snapshot unless other work has priority. `then` runs in the same transaction."""
    if not unmeasured().filter(run=run_id).exists():
        return Outcome.DONE
    packing = Release.objects.filter(state=Release.State.PREPARING).exclude(run__in=unverified())
    with processes.turn(processes.measuring) as is_mine:
        if packing.exists() or not is_mine:
            return Outcome.BUSY
        snapshot = unmeasured().select_related("run__dataset").filter(run=run_id).first()
        if snapshot is not None:
            _measure(snapshot, then)
    return Outcome.DONE


def _measure(snapshot: Snapshot, then: Callable[..., object] | None) -> None:
    run = snapshot.run
    with faults_to(lambda fault: _log(run, snapshot, fault), "E360"), storage.workspace() as work:
        made = run_child(
            [
                "evaluate",
                str(recipe_file(run, work)),
                str(storage.snapshot_path(run, snapshot.file)),
                str(storage.heldout_path(run.dataset)),
                *storage.model_files(run),
                *_prompts(run),
            ],
            timeout_s=TIMEOUT_S,
            more=ONE_THREAD,
        )
        written = [list(pair) for pair in zip(run.prompt_lines, map(_kept, made["written"]), strict=False)]
        facts = {"heldout_loss": made["loss"], "heldout_figures": made["figures"], "written": written}
        with transaction.atomic():
            Snapshot.objects.filter(pk=snapshot.pk, heldout_loss=None).update(**facts)
            if then is not None:
                then(run=run)


def _kept(text: str) -> str:
    """Return the text cut to the limit. Replace NUL, which PostgreSQL cannot store."""
    return text.replace("\0", "\ufffd")[:LONGEST]


def _prompts(run: Run) -> list[str]:
    if not run.parsed_recipe.writes:
        return []
    return ["--data", str(storage.prepared_folder(run.dataset)), *(f"--prompt={line}" for line in run.prompt_lines)]


def _log(run: Run, snapshot: Snapshot, fault: Fault) -> None:
    """Log a failed measurement for the operator. The run continues without it; the site retries when it next starts."""
    logger.warning("run %s, step %s: %s", run.slug, snapshot.step, fault)
