"""The threads of a worker: outcomes, wake-ups, ends."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from jobs import queue, runner
from jobs.models import Job
from jobs.queue import Kind, Lane
from jobs.runner import Failed, Later, Outcome, backoff_s, do_next, doing_jobs, undone
from tests.coordination.engines import PATIENCE_S

VERIFY = Kind.VERIFY_SNAPSHOTS

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces what the worker does for a kind of job."""
    known = dict(runner._known)
    monkeypatch.setattr(runner, "_known", known)

    def replace(work: Callable[[Job], Outcome], kind: Kind = VERIFY) -> None:
        known[kind] = work

    return replace


def wait_until(is_so: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_all_kinds_are_done_by_the_sites_worker() -> None:
    import server.worker

    assert len(server.worker.BACKGROUND) == 4
    assert undone() == set()


@pytest.mark.parametrize(
    ("outcome", "state", "failures", "fault"),
    [
        (Later(60), "queued", 0, ""),
        (Later(fault="E346: no answer"), "queued", 1, "E346: no answer"),
        (Failed("E360: no"), "failed", 1, "E360: no"),
    ],
)
def test_an_outcome_is_stored(does: Any, outcome: Outcome, state: str, failures: int, fault: str) -> None:
    does(lambda _: outcome)
    queue.put(VERIFY, "a")
    assert do_next(Lane.REPLAY)
    job = Job.objects.get()
    assert (job.state, job.failures, job.fault) == (state, failures, fault)
    assert not do_next(Lane.REPLAY), "not before its time"


def test_done_work_leaves_nothing(does: Any) -> None:
    does(lambda _: None)
    queue.put(VERIFY, "a")
    assert (do_next(Lane.REPLAY), Job.objects.count()) == (True, 0)


def test_an_unforeseen_error_is_told_and_tried_again(does: Any, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(_: Job) -> Outcome:
        raise ZeroDivisionError

    does(breaks)
    queue.put(VERIFY, "a")
    do_next(Lane.REPLAY)
    assert Job.objects.get().fault.startswith("E468: The job “verify snapshots” failed")
    assert "ZeroDivisionError" in caplog.text


def test_waits_double_and_have_a_bound() -> None:
    assert [backoff_s(failures) for failures in (0, 1, 2, 100)] == [5, 10, 20, 600]


def test_a_wake_up_starts_work_at_once(does: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_S", PATIENCE_S)
    done: list[str] = []
    does(lambda job: done.append(job.key))
    with doing_jobs():
        queue.put(VERIFY, "a")
        wait_until(lambda: done == ["a"])


def test_without_wake_ups_work_starts_a_little_later(does: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOK_S", 0.05)
    monkeypatch.setattr(queue, "wake", lambda _: None)
    done: list[str] = []
    does(lambda job: done.append(job.key))
    with doing_jobs():
        queue.put(VERIFY, "a")
        wait_until(lambda: done == ["a"])


def test_a_long_job_delays_no_other_lane_and_keeps_its_lease(does: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LEASE", timedelta(seconds=0.15))
    going_on, done = threading.Event(), []
    does(lambda _: going_on.wait(PATIENCE_S) and None)
    does(lambda job: done.append(job.key), Kind.WRITE_TRIAL)
    with doing_jobs():
        queue.put(VERIFY, "a")
        wait_until(lambda: Job.objects.filter(state="running").exists())
        before = Job.objects.get().leased_until
        queue.put(Kind.WRITE_TRIAL, "b")
        wait_until(lambda: done == ["b"])
        wait_until(lambda: Job.objects.get(kind=VERIFY).leased_until != before)
        going_on.set()
        wait_until(lambda: not Job.objects.exists())


def test_a_job_that_the_end_interrupts_is_queued_again(does: Any) -> None:
    killed = threading.Event()
    does(lambda _: killed.wait(PATIENCE_S) and None)
    with doing_jobs() as stop:
        queue.put(VERIFY, "a")
        wait_until(lambda: Job.objects.filter(state="running").exists())
        stop()
        killed.set()
    assert (Job.objects.get().state, Job.objects.get().failures) == ("queued", 0)


def test_a_queue_that_is_away_loses_no_request(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("Redis is away")

    settings.REDIS_URL = "redis://127.0.0.1:1/"
    monkeypatch.setattr(queue.wake_up, "apply_async", away)
    queue.put(VERIFY, "a")
    assert "Redis is away" in caplog.text
    assert queue.claim(Lane.REPLAY) is not None
