"""One run of a site's worker. `draft` enqueues work and exits; `work` completes it, running each task twice.

Settings come from environment variables, which place the queue in this process or in Redis. Stubs replace child
processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
PATIENCE_S = 120.0


def wait_for(done: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > until:
            raise SystemExit("the worker did not do it in time")
        time.sleep(0.02)


def draft() -> None:
    """Store a text and enqueue its preparation, without waiting for the work."""
    from accounts.models import Person
    from runs.datasets.services import store_upload
    from runs.lifecycle import services
    from tests.runs.datasets.test_preparation import TEXT
    from tests.runs.factories import RECIPE

    person = Person.objects.create_user("Amina", None)
    dataset = store_upload(organizer=person, title="W", licence="CC0", filename="w.txt", size=len(TEXT), chunks=[TEXT])
    services.create_run(organizer=person, dataset=dataset, title="Proverbs", purpose="", recipe=RECIPE)


def work() -> dict[str, Any]:
    """Complete the enqueued work and publish the run, running each task twice. Return the resulting state of the
    rows.
    """
    from runs import queue, tasks
    from runs.lifecycle.services import finish_run, open_run
    from runs.models import Dataset, Release, Run
    from runs.queue import TaskName
    from server.worker import running_worker

    with running_worker():
        requeued = tasks.requeue_unfinished()
        wait_for(lambda: Dataset.objects.get().state == Dataset.State.READY)
        run = Run.objects.select_related("dataset").get()
        open_run(run=run, seen=run.dataset.mark)
        wait_for(lambda: Run.objects.get().state == Run.State.OPEN)
        run.refresh_from_db()
        for _ in range(2):
            queue.enqueue(TaskName.PREPARE_DATASET, run.dataset_id)
            queue.enqueue(TaskName.PREPARE_RUN, run.pk)
        for _ in range(3):
            finish_run(run=run)
        wait_for(lambda: Release.objects.get().state == Release.State.READY)
        run.refresh_from_db()
        return {
            "requeued": requeued,
            "state": run.state,
            "shards": run.dataset.shards.count(),
            "snapshots": run.snapshots.count(),
            "told": sorted(run.activity.values_list("kind", flat=True)),
            "left": tasks.requeue_unfinished(),
        }


def main(life: str) -> None:
    from django import setup
    from django.core.management import call_command

    setup()
    from runs.datasets import preparation
    from runs.lifecycle import services
    from runs.releases import making
    from tests.runs.datasets.test_preparation import ANSWERS

    def answer(arguments: list[str]) -> dict[str, Any]:
        return ANSWERS[arguments[0]](arguments)

    for room in (preparation, services, making):
        vars(room)["run_child"] = answer
    call_command("migrate", verbosity=0)
    if life == "draft":
        draft()
    else:
        print(json.dumps(work()))


if __name__ == "__main__":
    main(sys.argv[1])
