"""Regular deletion of old rows while the site is running, and a check that this version knows the database's tables."""

import asyncio
import contextlib
import logging

from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from accounts.devices import forget_dead
from coordination.threads import in_thread
from notices import outbox
from notices.services import forget_unconfirmed
from peer_agent.protocol.errors import Problem
from runs.releases import trials

log = logging.getLogger(__name__)

EVERY_S = 3600.0
# This project's apps; other apps may replace their migrations.
OURS = frozenset({"accounts", "coordination", "jobs", "notices", "runs"})


async def keep_house(stop: asyncio.Event) -> None:
    """Delete expired rows at once, then every hour until `stop`. Several site processes may do so concurrently."""
    while not stop.is_set():
        try:
            await in_thread(_clear)()
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)


def _clear() -> None:
    now = timezone.now()
    Session.objects.filter(expire_date__lt=now).delete()  # people with expired sessions are already logged out
    forget_dead(now)
    outbox.forget_old(now)
    forget_unconfirmed(now)
    trials.forget_old(now)


def refuse_unknown_changes() -> None:
    """Raise Problem E418 if a newer version has applied a migration that this version does not know."""
    loader = MigrationLoader(connection)
    for app, name in sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys()):
        if app in OURS:
            raise Problem.of("E418", change=f"{app}.{name}")
