"""Held-out losses of snapshots. The site measures them as a job, for a run's latest snapshot only."""

from collections.abc import Callable
from uuid import UUID

from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery

from jobs.models import Job
from jobs.queue import Kind
from peer_agent.protocol.errors import Fault
from runs import storage
from runs.models import Release, Run, Snapshot
from runs.processes import faults_to, run_child
from runs.snapshots.verification import unverified
from runs.storage import recipe_file

TIMEOUT_S = 1800
LONGEST = 2000  # most characters of a text to store
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def unmeasured() -> QuerySet[Snapshot]:
    """Return each run's latest snapshot if it has no held-out loss yet."""
    newest = Snapshot.objects.filter(run=OuterRef("run")).order_by("-index").values("pk")[:1]
    waiting = Snapshot.objects.filter(pk=Subquery(newest), heldout_loss=None, step__gt=0)
    return waiting.filter(run__dataset__heldout__isnull=False)


def is_release_first() -> bool:
    """Return True if a waiting release should be made before held-out losses are measured.

    This is so if the release's job has not failed and its run has no snapshot left to verify.
    """
    making = Job.objects.filter(kind=Kind.MAKE_RELEASE, failures=0).exclude(state=Job.State.FAILED)
    runs = [UUID(key) for key in making.values_list("key", flat=True)]
    waiting = Release.objects.filter(state=Release.State.PREPARING, run__in=runs)
    return waiting.exclude(run__in=unverified()).exists()


def measure_newest(run_id: UUID, then: Callable[..., object] | None = None) -> Fault | None:
    """Measure the held-out loss of a run's latest snapshot. Return any error.

    `then` is called in the transaction that stores the result. If the measurement fails, the run continues without it.
    """
    snapshot = unmeasured().select_related("run__dataset").filter(run=run_id).first()
    faults: list[Fault] = []
    if snapshot is not None:
        with faults_to(faults.append, "E360"):
            _measure(snapshot, then)
    return faults[0] if faults else None


def _measure(snapshot: Snapshot, then: Callable[..., object] | None) -> None:
    run = snapshot.run
    with storage.workspace() as work:
        made = run_child(
            [
                "evaluate",
                str(recipe_file(run, work)),
                str(storage.local(storage.snapshot_path(run, snapshot.file))),
                str(storage.local(storage.heldout_path(run.dataset))),
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
    """Return a text cut to `LONGEST` characters. NUL, which PostgreSQL cannot store, is replaced."""
    return text.replace("\0", "\ufffd")[:LONGEST]


def _prompts(run: Run) -> list[str]:
    if not run.parsed_recipe.writes:
        return []
    return ["--data", str(storage.local_data(run.dataset)), *(f"--prompt={line}" for line in run.prompt_lines)]
