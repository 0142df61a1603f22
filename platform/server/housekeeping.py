"""Regular deletion of old rows while the site runs, and backups of SQLite before its tables change."""

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

from accounts.devices import forget_dead
from coordination.threads import in_thread
from notices import outbox
from notices.services import forget_unconfirmed
from peer_agent.protocol.errors import Problem
from runs.releases import trials

log = logging.getLogger(__name__)

EVERY_S = 3600.0
KEPT = 5  # the newest copies that are kept
# Apps of this project; apps of others may replace their migrations.
OURS = frozenset({"accounts", "coordination", "jobs", "notices", "runs"})


async def keep_house(stop: asyncio.Event) -> None:
    """Delete expired rows at once, then every hour until `stop`. Several site processes may do this concurrently."""
    while not stop.is_set():
        try:
            await in_thread(_clear)()
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), EVERY_S)


def _clear() -> None:
    now = timezone.now()
    Session.objects.filter(expire_date__lt=now).delete()  # their people are logged out already
    forget_dead(now)
    outbox.forget_old(now)
    forget_unconfirmed(now)
    trials.forget_old(now)


# Copies of SQLite's file, made before its tables change. `backups/` in the data folder keeps the newest five.


def refuse_unknown_changes() -> None:
    """Raise Problem E418 if a newer version has applied a migration that this version does not know."""
    loader = MigrationLoader(connection)
    for app, name in sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys()):
        if app in OURS:
            raise Problem.of("E418", change=f"{app}.{name}")


def pending_changes() -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def back_up_before_changes(data: Path, *, now: datetime | None = None) -> Path | None:
    """Copy the SQLite file before migrations. Return the copy's path, or None if there is nothing to do."""
    if connection.vendor != "sqlite":
        return None
    source = Path(connection.settings_dict["NAME"])
    if not source.is_file() or not source.stat().st_size or not pending_changes():
        return None
    copy = copy_database(source, data / "backups", now or datetime.now(UTC))
    forget_old_copies(copy.parent)
    return copy


def copy_database(source: Path, folder: Path, now: datetime) -> Path:
    """Make a consistent copy that includes the write-ahead log. The copy appears complete or not at all."""
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"db-{now:%Y%m%d-%H%M%S-%f}.sqlite3"
    draft = target.with_suffix(".part")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(draft)) as writing:
        reading.backup(writing)
    return draft.rename(target)


def forget_old_copies(folder: Path) -> None:
    for path in sorted(folder.glob("db-*.sqlite3"))[:-KEPT]:
        path.unlink()
