"""A Celery worker in a thread of this process, which takes tasks from memory or from a broker."""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from celery.platforms import EX_OK
from celery.worker import state
from django.conf import settings

from config import celery_app
from runs.processes import stop_children
from web.health import BEAT_S, worker_mark

THREADS = 4  # one each for a replay, a measurement and a visitor's text, and one for all other tasks
PATIENCE_S = 2.0


@contextmanager
def running_worker() -> Iterator[threading.Thread]:
    """Run a Celery worker during a `with` block, and yield the worker's thread.

    At the end of the block, stop the child processes that its tasks have started, and then the worker.
    """
    # Celery warns about pickles if the account is root; this site accepts only JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    state.should_stop = None
    worker: Worker = celery_app.Worker(pool="threads", concurrency=THREADS, quiet=True, without_heartbeat=True)
    thread = threading.Thread(target=worker.start, name="worker", daemon=True)
    thread.start()
    stopped = threading.Event()
    threading.Thread(target=_beat, args=(thread, stopped), name="beat", daemon=True).start()
    try:
        yield thread
    finally:
        stopped.set()
        stop_children()
        _stop(worker, thread)


def _beat(worker: threading.Thread, stopped: threading.Event) -> None:
    """Touch the worker's file every few seconds while the worker runs, so that `web.health` knows of it."""
    while worker.is_alive() and not stopped.is_set():
        with contextlib.suppress(OSError):
            worker_mark().touch()
        stopped.wait(BEAT_S)


def _stop(worker: Worker, thread: threading.Thread) -> None:
    """Stop the worker. With a broker, only the worker's own thread can close the connection without logging errors."""
    if settings.REDIS_URL:
        state.should_stop = EX_OK  # type: ignore[assignment] # the worker reads it once a second or more often
        thread.join(2 * PATIENCE_S)
        return
    stopping = threading.Thread(target=worker.stop, daemon=True)  # a queue in memory blocks for two seconds at a time
    stopping.start()
    stopping.join(PATIENCE_S)
    thread.join(PATIENCE_S)
