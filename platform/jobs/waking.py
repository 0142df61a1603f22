"""Wake-ups of the worker, so that it looks at the table at once. Without them, it looks every few seconds.

On a site of several processes, Celery carries them to the worker. A wake-up that is lost, or that Redis does not
accept, delays a job only until the next look.
"""

import logging
import threading
from collections import defaultdict

from celery import shared_task
from django.conf import settings
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

EXPIRES_S = 5.0  # so that wake-ups do not pile up while no worker runs

_awake: "defaultdict[str, threading.Event]" = defaultdict(threading.Event)  # by lane


def wake(lane: str) -> None:
    """Ask the worker to look for jobs of this lane. Never raises, and waits briefly at most."""
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
    """Return the event that a wake-up of this lane sets in this process."""
    return _awake[lane]
