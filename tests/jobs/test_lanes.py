"""Lanes: heavy work is done one job at a time, so that the site needs memory for one of each."""

import threading
import time

import pytest

from jobs import queue, runner
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import doing_jobs
from tests.jobs.test_runner import wait_until

JOBS = 4
HEAVY = [Kind.VERIFY_SNAPSHOTS, Kind.MEASURE_HELDOUT, Kind.MAKE_RELEASE, Kind.PUBLISH_CHECKPOINT, Kind.WRITE_TRIAL]

pytestmark = pytest.mark.usefixtures("database")


@pytest.mark.parametrize("kind", HEAVY)
def test_heavy_jobs_are_done_one_at_a_time(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """A second thread would find a due job at its next look, while the first thread still works."""
    running, most = threading.Semaphore(1), []

    def work(_: Job) -> None:
        is_alone = running.acquire(blocking=False)
        time.sleep(0.1)
        most.append(is_alone)
        if is_alone:
            running.release()

    monkeypatch.setattr(runner, "_known", {kind: work})
    monkeypatch.setattr(runner, "LOOK_S", 0.02)
    for key in range(JOBS):
        queue.put(kind, str(key))
    with doing_jobs():
        wait_until(lambda: not Job.objects.exists())
    assert most == [True] * JOBS
