"""Background tasks in a thread of this process, from memory or from a real broker."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning

from config.celery import app
from runs.processes.child import stop_children

THREADS = 3  # a replay, a measurement, and one for everything else
PATIENCE_S = 2.0


@contextmanager
def running_worker() -> Iterator[threading.Thread]:
    """A worker for as long as the block lasts, and its thread; children of its tasks end with it."""
    # Celery warns root about pickles; ours takes JSON alone.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker: Worker = app.Worker(pool="threads", concurrency=THREADS, quiet=True, without_heartbeat=True)
    thread = threading.Thread(target=worker.start, name="worker", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop_children()
        _stop(worker)
        thread.join(PATIENCE_S)


def _stop(worker: Worker) -> None:
    stopping = threading.Thread(target=worker.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
