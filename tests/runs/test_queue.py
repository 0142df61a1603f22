"""Task names: each one belongs to a task, and each task has one."""

from typing import Any

from celery import current_app
from django.db import transaction

from runs import queue, tasks
from runs.models import Run
from runs.queue import TaskName


def test_every_name_is_of_a_task_and_every_task_has_its_name() -> None:
    known = {name for name in current_app.tasks if name.startswith(f"{tasks.__name__}.")}
    assert known == set(TaskName)


def test_what_is_enqueued_on_commit_waits_for_it(
    run: Run, monkeypatch: Any, django_capture_on_commit_callbacks: Any
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        tasks.thin_snapshots, "apply_async", lambda arguments, countdown: asked.append((arguments, countdown))
    )
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        queue.enqueue_on_commit(TaskName.THIN_SNAPSHOTS, run.pk, after_s=3)
        assert asked == []
    assert asked == [((run.pk.hex,), 3)]
