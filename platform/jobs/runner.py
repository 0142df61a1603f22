"""The threads of a worker, which run jobs. Other packages register a function for each kind of job with `does`.

The threads take jobs from the table themselves. Celery only wakes them, so jobs continue while Redis is down or
Celery's consumer is restarting.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import DatabaseError, close_old_connections
from msgspec import Struct

from config.logs import add_log_facts
from config.metrics import JOB_S
from jobs import queue
from jobs.models import Job
from jobs.queue import LEASE, Kind, Lane, awake
from peer_agent.protocol.errors import Fault, Problem

log = logging.getLogger(__name__)

LOOK_S = 2.0  # seconds until a thread looks for due jobs without a wake-up
THREADS = dict.fromkeys(Lane, 1) | {Lane.PREPARE: 2, Lane.PUBLISH: 2}
PATIENCE_S = 2.0  # seconds for threads to end; slower jobs are repeated at the next start
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 600.0


class Later(Struct, frozen=True):
    """An outcome: the worker must do the job again later. `fault` says why the job failed, or is empty if it did not.

    If `after_s` is None, the wait grows with the number of consecutive failures.
    """

    after_s: float | None = None
    fault: str = ""


class Failed(Struct, frozen=True):
    """An outcome: the job failed, and would fail again if it were retried."""

    fault: str


Outcome = Later | Failed | None  # None: the work is done
Work = Callable[[Job], Outcome]

_known: dict[Kind, Work] = {}


def does(kind: Kind) -> Callable[[Work], Work]:
    """Return a decorator that registers the function for a kind of job. The function must be safe to repeat."""

    def register(function: Work) -> Work:
        _known[kind] = function
        return function

    return register


def undone() -> set[Kind]:
    """Return the kinds of job that have no registered function."""
    return set(Kind) - set(_known)


@contextmanager
def doing_jobs() -> Iterator[Callable[[], None]]:
    """Run jobs in threads during a `with` block. Yield a function that stops each thread after its current job.

    Call that function before the jobs' child processes are killed, so that the interrupted jobs are queued again.
    """
    stopped, running = threading.Event(), Running()
    lanes = [lane for lane, number in THREADS.items() for _ in range(number)]
    works = [threading.Thread(target=_work, args=(lane, running, stopped), name=lane, daemon=True) for lane in lanes]
    renewing = threading.Thread(target=_renew, args=(running, stopped), name="leases", daemon=True)
    for thread in (*works, renewing):
        thread.start()

    def stop() -> None:
        stopped.set()
        for lane in Lane:
            awake(lane).set()

    try:
        yield stop
    finally:
        stop()
        until = time.monotonic() + PATIENCE_S
        for thread in works:
            thread.join(max(0.0, until - time.monotonic()))


class Running:
    """The jobs that this worker's threads are currently running."""

    def __init__(self) -> None:
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()

    @contextmanager
    def contains(self, job: Job) -> Iterator[None]:
        with self._lock:
            self._jobs.add(job)
        try:
            yield
        finally:
            with self._lock:
                self._jobs.discard(job)

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs)


def _work(lane: Lane, running: Running, stopped: threading.Event) -> None:
    while not stopped.is_set():
        awake(lane).clear()
        try:
            found = do_next(lane, running, stopped)
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
            found = False
        finally:
            close_old_connections()
        if not found:
            awake(lane).wait(LOOK_S)


def do_next(lane: Lane, running: Running | None = None, stopped: threading.Event | None = None) -> bool:
    """Do the job in a lane that has been due longest. Return False if no job is due."""
    job = queue.claim(lane)
    if job is None:
        return False
    began = time.monotonic()
    add_log_facts(job=job.kind, key=job.key)
    with (running or Running()).contains(job):
        outcome = _done(job)
    add_log_facts(job="", key="")
    JOB_S.labels(job.kind, _word(outcome)).observe(time.monotonic() - began)
    if stopped is not None and stopped.is_set():
        queue.release(job)  # it may have been cut short
    elif isinstance(outcome, Later):
        after_s = backoff_s(job.failures) if outcome.after_s is None else outcome.after_s
        queue.later(job, after_s, outcome.fault)
    elif isinstance(outcome, Failed):
        queue.give_up(job, outcome.fault)
    else:
        queue.done(job)
    return True


def _done(job: Job) -> Outcome:
    try:
        return _known[Kind(job.kind)](job)
    except Problem as problem:
        log.warning("job %s: %s", job, problem)
        return Later(fault=str(problem))
    except Exception as error:
        log.exception("job %s", job)
        return Later(fault=str(Fault.of("E468", job=job.kind, reason=type(error).__name__)))


def _word(outcome: Outcome) -> str:
    if isinstance(outcome, Later):
        return "failed" if outcome.fault else "later"
    return "done" if outcome is None else "given up"


def backoff_s(failures: int) -> float:
    """Return the seconds until the next attempt, doubling with each of the `failures` so far."""
    return min(FIRST_RETRY_S * 2.0 ** min(failures, 10), LONGEST_RETRY_S)


def _renew(running: Running, stopped: threading.Event) -> None:
    while not stopped.wait(LEASE.total_seconds() / 3):
        try:
            queue.renew(running.all())
        except DatabaseError:
            log.warning("leases of jobs are not renewed", exc_info=True)
        finally:
            close_old_connections()
