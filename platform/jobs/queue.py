"""Job requests, leases, and wake-ups for the worker.

All times come from the database's clock, so workers with wrong clocks do no harm.
"""

import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Least, Now
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from jobs.models import Job

log = logging.getLogger(__name__)

State = Job.State

LEASE = timedelta(seconds=30)
TRIES = 100  # attempts to store a request while other processes insert and delete the same row
LOOKED_AT = 8  # due jobs that a worker tries to lease before querying again
DEADLY = 5  # give up a job after this many workers in a row died doing it
DIED = "The worker ended {times} times while it did this."


class Lane(StrEnum):
    """A group of job kinds. Each lane has its own worker threads (`jobs.runner`), so no lane delays another."""

    SHORT = "short"
    PREPARE = "prepare"
    REPLAY = "replay"
    ARCHIVE = "archive"
    MEASURE = "measure"
    PACK = "pack"
    PUBLISH = "publish"
    TRY = "try"


class Kind(StrEnum):
    ARCHIVE_LOG = "archive log"
    DELETE_FILES = "delete files"
    DELIVER_NOTICES = "deliver notices"
    EXPIRE_PENDING = "expire pending"
    FORGET_NAME = "forget name"
    MAKE_RELEASE = "make release"
    MEASURE_HELDOUT = "measure held-out"
    PREPARE_DATASET = "prepare dataset"
    PREPARE_RUN = "prepare run"
    PUBLISH_CHECKPOINT = "publish checkpoint"
    PUBLISH_RELEASE = "publish release"
    RECHECK = "recheck"
    REMAKE_RELEASE = "remake release"
    THIN_SNAPSHOTS = "thin snapshots"
    VERIFY_SNAPSHOTS = "verify snapshots"
    WATCH_CHECKS = "watch checks"
    WRITE_TRIAL = "write trial"


LANES: dict[Kind, Lane] = {
    Kind.ARCHIVE_LOG: Lane.ARCHIVE,
    Kind.DELETE_FILES: Lane.SHORT,
    Kind.DELIVER_NOTICES: Lane.SHORT,
    Kind.EXPIRE_PENDING: Lane.SHORT,
    Kind.FORGET_NAME: Lane.SHORT,
    Kind.MAKE_RELEASE: Lane.PACK,
    Kind.MEASURE_HELDOUT: Lane.MEASURE,
    Kind.PREPARE_DATASET: Lane.PREPARE,
    Kind.PREPARE_RUN: Lane.PREPARE,
    Kind.PUBLISH_CHECKPOINT: Lane.PACK,
    Kind.PUBLISH_RELEASE: Lane.PUBLISH,
    Kind.RECHECK: Lane.MEASURE,
    Kind.REMAKE_RELEASE: Lane.PACK,
    Kind.THIN_SNAPSHOTS: Lane.SHORT,
    Kind.VERIFY_SNAPSHOTS: Lane.REPLAY,
    Kind.WATCH_CHECKS: Lane.SHORT,
    Kind.WRITE_TRIAL: Lane.TRY,
}


# Requests


def put(kind: Kind, key: UUID | str = "", *, after_s: float = 0.0) -> None:
    """Request a job, in the current transaction. If the job is already running, it will run once more.

    A job waiting for a retry keeps its due time. A job that had been given up is queued again.
    """
    _request(kind, key, after_s, keeps_retry=True)


def try_again(kind: Kind, key: UUID | str = "") -> None:
    """Request a job that a person wants done now, even if it is waiting to be retried."""
    _request(kind, key, 0.0, keeps_retry=False)


def _request(kind: Kind, key: UUID | str, after_s: float, *, keeps_retry: bool) -> None:
    key = key.hex if isinstance(key, UUID) else key
    due = _in_seconds(after_s)
    same = Job.objects.filter(kind=kind, key=key)
    retries = Q(failures__gt=0, state=State.QUEUED) if keeps_retry else Q(pk=None)
    changes = {
        "is_wanted_again": True,
        "due": Case(When(retries, then=F("due")), When(state=State.FAILED, then=due), default=Least(F("due"), due)),
        "state": Case(When(state=State.FAILED, then=Value(State.QUEUED)), default=F("state")),
    }
    for _ in range(TRIES):
        if same.update(**changes) or _created(kind, key, due):
            break
    if not after_s:
        transaction.on_commit(partial(wake, LANES[kind]))


def _in_seconds(seconds: float) -> Any:
    """Return an SQL expression for the time `seconds` from now.

    For 0 seconds, nothing is added, because SQLite would return the time with more digits after an addition.
    """
    return Now() + timedelta(seconds=seconds) if seconds else Now()


def _created(kind: Kind, key: str, due: Any) -> bool:
    """Insert a job. Return False if another process has just inserted the same job. That job may be done already."""
    try:
        with transaction.atomic():
            Job.objects.create(kind=kind, key=key, due=due)
    except IntegrityError:
        return False
    return True


# Leases


def claim(lane: Lane) -> Job | None:
    """Lease the job in this lane that has been due longest, or return None."""
    kinds = [kind for kind, own in LANES.items() if own == lane]
    free = Q(state=State.QUEUED, due__lte=Now()) | Q(state=State.RUNNING, leased_until__lt=Now())
    for job in Job.objects.filter(free, kind__in=kinds).order_by("due", "pk")[:LOOKED_AT]:
        if job.state == State.RUNNING and _is_deadly(job):
            continue
        lease = secrets.token_hex(8)
        was_lost = Case(When(state=State.RUNNING, then=F("failures") + 1), default=F("failures"))
        facts = {"state": State.RUNNING, "lease": lease, "leased_until": Now() + LEASE, "is_wanted_again": False}
        if Job.objects.filter(free, pk=job.pk).update(**facts, failures=was_lost):
            return Job.objects.filter(pk=job.pk, lease=lease).first()
    return None


def _is_deadly(job: Job) -> bool:
    """Give up a job if `DEADLY` workers in a row have died doing it. Return True if it was given up."""
    if job.failures + 1 < DEADLY:
        return False
    lost = Job.objects.filter(pk=job.pk, lease=job.lease, state=State.RUNNING)
    return bool(lost.update(state=State.FAILED, lease="", fault=DIED.format(times=job.failures + 1)))


def renew(jobs: Iterable[Job]) -> None:
    for job in jobs:
        _leased(job).update(leased_until=Now() + LEASE)


def done(job: Job) -> None:
    """Delete a finished job. If it was requested again while it ran, queue it instead."""
    if not _leased(job).filter(is_wanted_again=False).delete()[0]:
        _give_back(job, failures=0, fault="")


def later(job: Job, after_s: float, fault: str = "") -> None:
    """Queue a job again after `after_s` seconds.

    If `fault` is set, count a failure. Only a person can then bring the retry forward (`try_again`). If `fault` is
    empty and the job was requested again while it ran, make it due at once.
    """
    due = _in_seconds(after_s)
    if fault:
        _give_back(job, due=due, failures=F("failures") + 1, fault=fault)
    else:
        _give_back(job, due=Case(When(is_wanted_again=True, then=Now()), default=due), failures=0, fault="")


def give_up(job: Job, fault: str) -> None:
    """Mark a job as failed, for the operators to handle. If it was requested again while it ran, queue it instead."""
    given_up = {"state": State.FAILED, "lease": "", "leased_until": None, "failures": F("failures") + 1}
    if not _leased(job).filter(is_wanted_again=False).update(**given_up, fault=fault):
        _give_back(job, failures=0, fault=fault)


def release(job: Job) -> None:
    """Put a job back in the queue when its worker ends before finishing it."""
    _give_back(job)


def release_all() -> None:
    """Queue all running jobs again. Call this only if no other process of the site is running."""
    Job.objects.filter(state=State.RUNNING).update(state=State.QUEUED, lease="", leased_until=None)


def _leased(job: Job) -> QuerySet[Job]:
    return Job.objects.filter(pk=job.pk, lease=job.lease, state=State.RUNNING)


def _give_back(job: Job, **changes: Any) -> None:
    _leased(job).update(state=State.QUEUED, lease="", leased_until=None, **changes)


# Wake-ups, which make a worker look at the table at once; otherwise it looks every few seconds. On a site with several
# processes, Celery carries them. A lost wake-up only delays a job until the next look.

EXPIRES_S = 5.0  # so that wake-ups do not pile up while no worker runs

_awake: "defaultdict[str, threading.Event]" = defaultdict(threading.Event)  # keyed by lane


def wake(lane: str) -> None:
    """Ask the worker to look for jobs in this lane. Never raises an error and never blocks for long."""
    if not settings.REDIS_URL:
        awake(lane).set()
        return
    try:
        wake_up.apply_async((lane,), expires=EXPIRES_S)
    except (OperationalError, RedisError, OSError) as error:
        log.warning("the worker looks for jobs later: %s", error)


@shared_task
def wake_up(lane: str) -> None:
    awake(lane).set()


def awake(lane: str) -> threading.Event:
    """Return the event that is set when this lane is woken up in this process."""
    return _awake[lane]
