"""Names of tasks. Callers use these names instead of importing `runs.tasks`."""

from enum import StrEnum
from uuid import UUID

from celery import current_app
from django.db import transaction


class TaskName(StrEnum):
    PREPARE_DATASET = "runs.tasks.prepare_dataset"
    PREPARE_RUN = "runs.tasks.prepare_run"
    MAKE_RELEASE = "runs.tasks.make_release"
    PUBLISH_RELEASE = "runs.tasks.publish_release"
    PUBLISH_CHECKPOINT = "runs.tasks.publish_checkpoint"
    REMAKE_RELEASE = "runs.tasks.remake_release"
    VERIFY_SNAPSHOTS = "runs.tasks.verify_snapshots"
    MEASURE_HELDOUT = "runs.tasks.measure_heldout"
    THIN_SNAPSHOTS = "runs.tasks.thin_snapshots"
    WRITE_TRIAL = "runs.tasks.write_trial"


def enqueue(task: TaskName, row_id: UUID, *, after_s: float = 0) -> None:
    current_app.tasks[task].apply_async((row_id.hex,), countdown=after_s)


def enqueue_on_commit(task: TaskName, row_id: UUID, *, after_s: float = 0) -> None:
    transaction.on_commit(lambda: enqueue(task, row_id, after_s=after_s))
