"""What has to be done now and then while a site is up, however quiet it is, and before its tables change."""

import asyncio
import contextlib
import logging
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from django.contrib.sessions.models import Session
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone
from kombu.exceptions import OperationalError

from accounts.devices import forget_dead
from coordination.threads import in_thread
from notices import outbox
from notices.services import forget_unconfirmed
from notices.tasks import deliver
from peer_agent.protocol.errors import Problem
from runs.releases import trials

log = logging.getLogger(__name__)

EVERY_S = 3600.0
NOTICES_S = 5.0  # between looks for notices to be sent
KEPT = 5  # copies, the newest
OURS = frozenset({"accounts", "coordination", "notices", "runs"})  # apps; those of others may merge their migrations


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
    Session.objects.filter(expire_date__lt=now).delete()  # whoever has one is logged out already
    forget_dead(now)
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


# A copy of SQLite before its tables change: `backups/` in the data folder, the newest five


def refuse_unknown_changes() -> None:
    """Raise Problem E418 if the tables have a migration of ours that this version does not know."""
    loader = MigrationLoader(connection)
    for app, name in sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys()):
        if app in OURS:
            raise Problem.of("E418", change=f"{app}.{name}")


def pending_changes() -> int:
    """How many migrations this code has and the database has not."""
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def back_up_before_changes(data: Path, *, now: datetime | None = None) -> Path | None:
    """The copy that was made; None where nothing changes, nothing is there yet, or the database is no SQLite file."""
    if connection.vendor != "sqlite":
        return None
    source = Path(connection.settings_dict["NAME"])
    if not source.is_file() or not source.stat().st_size or not pending_changes():
        return None
    copy = copy_database(source, data / "backups", now or datetime.now(UTC))
    forget_old_copies(copy.parent)
    return copy


def copy_database(source: Path, folder: Path, now: datetime) -> Path:
    """A consistent copy, also of what still lies in the write-ahead log; whole or not there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"db-{now:%Y%m%d-%H%M%S-%f}.sqlite3"
    draft = target.with_suffix(".part")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(draft)) as writing:
        reading.backup(writing)
    return draft.rename(target)


def forget_old_copies(folder: Path) -> None:
    """Keep the newest; their names sort by time."""
    for path in sorted(folder.glob("db-*.sqlite3"))[:-KEPT]:
        path.unlink()
