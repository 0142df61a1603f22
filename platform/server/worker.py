"""A worker in threads of this process. It does the jobs in the database, and other processes can wake it."""

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from celery.platforms import EX_OK
from celery.worker import state
from django.conf import settings

import coordination.background
import notices.delivery
import runs.background
import web.operator_alerts
from config import celery_app
from jobs.runner import doing_jobs, undone
from peer_agent.protocol.errors import Fault
from runs.processes import stop_children
from web.health import BEAT_S, note_worker

log = logging.getLogger(__name__)

BACKGROUND = (
    coordination.background,
    notices.delivery,
    runs.background,
    web.operator_alerts,
)  # importing these registers their jobs
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
STEADY_S = 60.0  # after this long, a consumer counts as healthy
PATIENCE_S = 4.0


@contextmanager
def running_worker() -> Iterator[None]:
    """Do jobs during a `with` block. At its end, kill the jobs' child processes; the next start repeats those jobs."""
    assert not undone()
    stopped = threading.Event()
    with doing_jobs() as end_jobs:
        threading.Thread(target=_beat, args=(stopped,), name="beat", daemon=True).start()
        consuming = threading.Thread(target=_consume, args=(stopped,), name="wake-ups", daemon=True)
        if settings.REDIS_URL:
            consuming.start()
        try:
            yield
        finally:
            stopped.set()
            end_jobs()
            stop_children()
            if settings.REDIS_URL:
                state.should_stop = EX_OK  # type: ignore[assignment] # the consumer reads it at least once a second
                consuming.join(PATIENCE_S)


def _beat(stopped: threading.Event) -> None:
    """Record every few seconds that the worker is up, for `web.health`."""
    while not stopped.is_set():
        with contextlib.suppress(OSError):
            note_worker()
        stopped.wait(BEAT_S)


def _consume(stopped: threading.Event) -> None:
    """Receive wake-ups through Celery until `stopped`. Restart its consumer whenever it ends.

    Restarting Redis ends the consumer, because kombu 5.7 fails to return messages that it has not acknowledged. No job
    is lost, because jobs are stored in the database.
    """
    # Celery warns about pickle when run as root; this site accepts only JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    pause_s = FIRST_PAUSE_S
    while not stopped.is_set():
        began, state.should_stop = time.monotonic(), None
        worker: Worker = celery_app.Worker(pool="solo", quiet=True, without_heartbeat=True, without_mingle=True)
        reason = "it lost its connection to Redis"
        try:
            worker.start()
        except Exception as error:  # noqa: BLE001 (whatever ended it, it is started again)
            reason = type(error).__name__
        if stopped.is_set():
            return
        pause_s = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
        log.warning("%s", Fault.of("E467", reason=reason, seconds=f"{pause_s:g}"))
        stopped.wait(pause_s)
