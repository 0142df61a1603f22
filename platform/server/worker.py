"""Background tasks in a thread of this process, from memory or a real broker."""

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

THREADS = 4  # a replay, a measurement, a visitor's text, and one for everything else
PATIENCE_S = 2.0


@contextmanager
def running_worker() -> Iterator[threading.Thread]:
    """Run a worker during the block, and yield its thread; children of its tasks end with it."""
    # Celery warns root about pickles; ours accepts only JSON.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    state.should_stop = None
    worker: Worker = celery_app.Worker(pool="threads", concurrency=THREADS, quiet=True, without_heartbeat=True)
    thread = threading.Thread(target=worker.start, name="worker", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop_children()
        _stop(worker, thread)


def _stop(worker: Worker, thread: threading.Thread) -> None:
    """Stop the worker: with a broker by its own thread, since closing its connection from here logs errors."""
    if settings.REDIS_URL:
        state.should_stop = EX_OK  # type: ignore[assignment] # looked at each second at least
        thread.join(2 * PATIENCE_S)
        return
    stopping = threading.Thread(target=worker.stop, daemon=True)  # from memory it reads for two seconds at a time
    stopping.start()
    stopping.join(PATIENCE_S)
    thread.join(PATIENCE_S)
