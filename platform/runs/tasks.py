"""Celery tasks for long-running work. Each takes an id, returns nothing, and is safe to repeat.

Work interrupted by a restart is enqueued again.
"""

from uuid import UUID

from celery import Task, shared_task

from runs import queue
from runs.datasets import preparation
from runs.datasets.uploads import forget_stale
from runs.lifecycle import services
from runs.models import Dataset, Release, Run
from runs.queue import TaskName
from runs.releases import checkpoints, making, publishing, trials
from runs.releases.making import choose_by_default, is_stale
from runs.snapshots import heldout, retention, verification

RETRY_S = 60
BUSY_S = 5
TRIAL_BUSY_S = 1  # a visitor is waiting
AFTER_VERIFYING = (
    TaskName.VERIFY_SNAPSHOTS,
    TaskName.MEASURE_HELDOUT,
    TaskName.THIN_SNAPSHOTS,
    TaskName.PUBLISH_CHECKPOINT,
)


def _later_s(task: "Task[..., None]") -> int:
    """Return the seconds until the next try. The wait doubles each time, up to half an hour."""
    return int(min(RETRY_S * 2 ** min(task.request.retries, 10), publishing.LONGEST_RETRY_S))


@shared_task(bind=True, max_retries=None)
def prepare_dataset(self: "Task[..., None]", dataset_id: str) -> None:
    """Prepare a dataset, then enqueue the runs waiting for it. Retry if the Hub does not answer."""
    match preparation.prepare_dataset(UUID(dataset_id)):
        case "away":
            raise self.retry(countdown=_later_s(self))
        case "busy":
            raise self.retry(countdown=BUSY_S)
    for run_id in Run.objects.filter(dataset=UUID(dataset_id), state=Run.State.PREPARING).values_list("pk", flat=True):
        queue.enqueue(TaskName.PREPARE_RUN, run_id)


@shared_task
def prepare_run(run_id: str) -> None:
    services.prepare_run(UUID(run_id))


@shared_task(bind=True, max_retries=None)
def make_release(self: "Task[..., None]", run_id: str) -> None:
    """Make a release of a verified model. After a failure, retry, waiting longer each time."""
    state = making.make_release(UUID(run_id))
    if state == Release.State.FAILED:
        raise self.retry(countdown=_later_s(self))
    if state == Release.State.PREPARING:
        queue.enqueue(TaskName.VERIFY_SNAPSHOTS, UUID(run_id))  # this task makes the release when it is done
    for pk in publishing.waiting().filter(run=UUID(run_id)).values_list("run_id", flat=True):
        queue.enqueue(TaskName.PUBLISH_RELEASE, pk)


@shared_task(bind=True, max_retries=None)
def publish_release(self: "Task[..., None]", run_id: str) -> None:
    """Send the release to the Hub. If the Hub does not answer, retry later and resume."""
    if publishing.push_release(UUID(run_id)) == publishing.AWAY:
        raise self.retry(countdown=publishing.retry_in_s(UUID(run_id)))


@shared_task(bind=True, max_retries=None)
def publish_checkpoint(self: "Task[..., None]", run_id: str) -> None:
    """Send the newest snapshot to the Hub if a checkpoint is due. Retry if the Hub does not answer."""
    match checkpoints.push_checkpoint(UUID(run_id)):
        case publishing.AWAY:
            raise self.retry(countdown=publishing.retry_in_s(UUID(run_id)) + 1)
        case checkpoints.BUSY:
            raise self.retry(countdown=BUSY_S)


@shared_task(bind=True, max_retries=None)
def remake_release(self: "Task[..., None]", run_id: str) -> None:
    """Remake an outdated release, here and on the Hub. Retry if that fails or the result is already outdated."""
    releases = Release.objects.select_related("run__head")
    before = releases.get(run=UUID(run_id))
    if not is_stale(before):
        return
    making.make_release(UUID(run_id), anew=True)
    after = releases.get(run=UUID(run_id))
    if is_stale(after):
        raise self.retry(countdown=_later_s(self))
    if after.folder != before.folder and publishing.send_again(UUID(run_id)):
        queue.enqueue(TaskName.PUBLISH_RELEASE, UUID(run_id))


@shared_task(bind=True, max_retries=None)
def verify_snapshots(self: "Task[..., None]", run_id: str) -> None:
    """Replay the log up to each waiting snapshot in turn. Then enqueue the work that needs the results."""
    match verification.verify_next(UUID(run_id)):
        case verification.Outcome.BUSY:
            raise self.retry(countdown=BUSY_S)
        case verification.Outcome.FAILED:
            raise self.retry(countdown=verification.retry_in_s(UUID(run_id)))
        case verification.Outcome.MORE:
            for task in AFTER_VERIFYING:
                queue.enqueue(task, UUID(run_id))
        case verification.Outcome.DONE:
            if verification.is_release_ready(UUID(run_id)):
                queue.enqueue(TaskName.MAKE_RELEASE, UUID(run_id))


@shared_task(bind=True, max_retries=None)
def measure_heldout(self: "Task[..., None]", run_id: str) -> None:
    """Measure the held-out loss of a run's newest snapshot. Retry later if other work comes first."""
    if heldout.measure_newest(UUID(run_id), choose_by_default) == heldout.Outcome.BUSY:
        raise self.retry(countdown=BUSY_S)


@shared_task(bind=True, max_retries=None)
def write_trial(self: "Task[..., None]", trial_id: str) -> None:  # noqa: ARG001 (it takes what has waited longest)
    """Write the text for the trial that has been waiting longest. Each waiting trial has its own task."""
    if trials.write_next() == trials.Outcome.BUSY:
        raise self.retry(countdown=TRIAL_BUSY_S)


@shared_task
def thin_snapshots(run_id: str) -> None:
    retention.thin_snapshots(UUID(run_id))


def requeue_unfinished() -> int:
    """Enqueue all unfinished work when the site starts, and return the number of tasks."""
    forget_stale()
    verification.forget_delays()
    checkpoints.forget_delays()
    datasets = Dataset.objects.filter(state__in=(Dataset.State.UPLOADED, Dataset.State.PREPARING), runs__isnull=False)
    runs = Run.objects.filter(state=Run.State.PREPARING, dataset__state=Dataset.State.READY)
    releases = Release.objects.exclude(state=Release.State.READY)
    stale = [release for release in Release.objects.filter(state=Release.State.READY) if is_stale(release)]
    waiting = [
        *((TaskName.PREPARE_DATASET, pk) for pk in datasets.distinct().values_list("pk", flat=True)),
        *((TaskName.PREPARE_RUN, pk) for pk in runs.values_list("pk", flat=True)),
        *((TaskName.MAKE_RELEASE, pk) for pk in releases.values_list("run_id", flat=True)),
        *((TaskName.REMAKE_RELEASE, release.run_id) for release in stale),
        *((TaskName.PUBLISH_RELEASE, pk) for pk in publishing.waiting().values_list("run_id", flat=True)),
        *((TaskName.PUBLISH_CHECKPOINT, pk) for pk in checkpoints.waiting()),
        *((TaskName.VERIFY_SNAPSHOTS, pk) for pk in verification.unverified().values_list("pk", flat=True)),
        *((TaskName.MEASURE_HELDOUT, pk) for pk in heldout.unmeasured().values_list("run_id", flat=True)),
        *((TaskName.THIN_SNAPSHOTS, pk) for pk in retention.crowded()),
        *((TaskName.WRITE_TRIAL, pk) for pk in trials.waiting().values_list("pk", flat=True)),
    ]
    for task, row_id in waiting:
        queue.enqueue(task, row_id)
    return len(waiting)
