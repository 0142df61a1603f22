"""The hourly work of a running site: it deletes old rows and applies waiting migrations."""

import asyncio
import contextlib
import logging

from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone

from accounts.devices import forget_dead
from config.upgrades import pending
from coordination.threads import in_thread
from notices import outbox
from notices.services import forget_unconfirmed
from runs.releases import trials

log = logging.getLogger(__name__)

EVERY_S = 3600.0


async def keep_house(stop: asyncio.Event) -> None:
    """Delete expired rows and apply waiting migrations at once, then every hour until `stop`.

    Several site processes may do this concurrently.
    """
    while not stop.is_set():
        try:
            await in_thread(_clear)()
            await in_thread(_change_tables)()
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)


def _clear() -> None:
    now = timezone.now()
    Session.objects.filter(expire_date__lt=now).delete()  # the people of expired sessions are logged out already
    forget_dead(now)
    outbox.forget_old(now)
    forget_unconfirmed(now)
    trials.forget_old(now)


def _change_tables() -> None:
    if pending().now:
        call_command("migrate", verbosity=0, interactive=False)
