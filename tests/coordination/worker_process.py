"""One life of a site's worker. `draft` requests work and exits; `hang` is killed while it works; `work` does it all.
`wake` only waits for a wake-up.

Settings come from environment variables, which place wake-ups in this process or in Redis. Stubs replace child
processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
PATIENCE_S = 120.0
LEASE = timedelta(seconds=6)


def wait_for(done: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > until:
            raise SystemExit("the worker did not do it in time")
        time.sleep(0.02)


def draft() -> None:
    """Store a text and request its preparation, without waiting for the work."""
    from accounts.models import Person
    from runs.datasets.services import store_upload
    from runs.lifecycle import services
    from tests.runs.datasets.test_preparation import TEXT
    from tests.runs.factories import RECIPE

    person = Person.objects.create_user("Amina", None)
    dataset = store_upload(organizer=person, title="W", licence="CC0", filename="w.txt", size=len(TEXT), chunks=[TEXT])
    services.create_run(organizer=person, dataset=dataset, title="Proverbs", purpose="", recipe=RECIPE)


def hang() -> None:
    """Request work, begin it, and say so. The test then kills this process."""
    from server.worker import running_worker

    draft()
    with running_worker():
        time.sleep(PATIENCE_S)


def wake() -> None:
    """Wait until a wake-up reaches the worker. No thread uses the lane, so none clears its event."""
    from jobs import queue
    from server.worker import running_worker

    def is_woken() -> bool:
        queue.wake("no lane")
        return queue.awake("no lane").is_set()

    with running_worker():
        wait_for(is_woken)


def work() -> dict[str, Any]:
    """Do the requested work and publish the run, requesting each job twice. Return the resulting state of the rows."""
    from jobs import queue
    from jobs.models import Job
    from jobs.queue import Kind
    from runs.lifecycle.services import finish_run, open_run
    from runs.models import Dataset, Release, Run
    from server.worker import running_worker

    found = list(Job.objects.values_list("kind", "state", "leased_until"))
    with running_worker():
        wait_for(lambda: Dataset.objects.get().state == Dataset.State.READY)
        run = Run.objects.select_related("dataset").get()
        open_run(run=run, seen=run.dataset.mark)
        wait_for(lambda: Run.objects.get().state == Run.State.OPEN)
        run.refresh_from_db()
        for _ in range(2):
            queue.put(Kind.PREPARE_DATASET, run.dataset_id)
            queue.put(Kind.PREPARE_RUN, run.pk)
        for _ in range(3):
            finish_run(run=run)
        wait_for(lambda: Release.objects.get().state == Release.State.READY)
        wait_for(lambda: not Job.objects.exists())
        run.refresh_from_db()
        return {
            "found": [(kind, state) for kind, state, _ in found],
            "leased until": max((until.timestamp() for _, _, until in found if until is not None), default=0.0),
            "state": run.state,
            "shards": run.dataset.shards.count(),
            "snapshots": run.snapshots.count(),
            "told": sorted(run.activity.values_list("kind", flat=True)),
        }


def main(life: str) -> None:
    from django import setup
    from django.core.management import call_command

    setup()
    from jobs import queue, runner
    from runs.datasets import preparation
    from runs.lifecycle import services
    from runs.releases import making
    from tests.runs.datasets.test_preparation import ANSWERS

    begun: list[tuple[str, float]] = []

    def answer(arguments: list[str]) -> dict[str, Any]:
        begun.append((arguments[0], time.time()))
        if life == "hang":
            print("begun", flush=True)
            time.sleep(PATIENCE_S)
        return ANSWERS[arguments[0]](arguments)

    for room in (preparation, services, making):
        vars(room)["run_child"] = answer
    for module in (queue, runner):
        vars(module)["LEASE"] = LEASE
    call_command("migrate", verbosity=0)
    if life == "work":
        print(json.dumps({**work(), "begun": begun}))
    else:
        {"draft": draft, "hang": hang, "wake": wake}[life]()


if __name__ == "__main__":
    main(sys.argv[1])
