"""What has to be done now and then while a site is up, however quiet it is."""

import asyncio
import contextlib
import logging

from django.db import DatabaseError
from django.utils import timezone
from kombu.exceptions import OperationalError

from accounts.expiry import clear_expired
from coordination.threads import in_thread
from notices import outbox
from notices.services import forget_unconfirmed
from notices.tasks import deliver
from runs.releases import trials

log = logging.getLogger(__name__)

EVERY_S = 3600.0
NOTICES_S = 5.0  # between looks for notices to be sent


async def keep_house(stop: asyncio.Event) -> None:
    """At once, and then every hour until `stop`. Several processes of a site may do it at the same time."""
    while not stop.is_set():
        try:
            await in_thread(_clear)()
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)


def _clear() -> None:
    now = timezone.now()
    clear_expired(now)
    outbox.forget_old(now)
    forget_unconfirmed(now)
    trials.forget_old(now)


async def ask_for_delivery(stop: asyncio.Event) -> None:
    """Have the worker send notices that are due, until `stop`; also those that a restart has interrupted."""
    while not stop.is_set():
        try:
            await in_thread(_ask_for_delivery)()
        except (DatabaseError, OperationalError):
            log.warning("the database or the queue is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), NOTICES_S)


def _ask_for_delivery() -> None:
    if outbox.due(timezone.now()).exists():
        deliver.apply_async(expires=NOTICES_S)  # of a worker that is away not one question each time is kept
