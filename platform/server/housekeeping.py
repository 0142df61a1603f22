"""What has to be done now and then while a site is up, however quiet it is."""

import asyncio
import contextlib
import logging

from django.db import DatabaseError
from django.utils import timezone

from accounts.expiry import clear_expired
from coordination.threads import in_thread

log = logging.getLogger(__name__)

EVERY_S = 3600.0


async def keep_house(stop: asyncio.Event) -> None:
    """At once, and then every hour until `stop`. Several processes of a site may do it at the same time."""
    while not stop.is_set():
        try:
            await in_thread(clear_expired)(timezone.now())
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)
