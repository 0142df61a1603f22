"""What `serve` does before tables change: refuse those of another version, and copy SQLite to `backups/`."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

from peer_agent.protocol.errors import Problem

KEPT = 5  # copies, the newest
OURS = frozenset({"accounts", "coordination", "notices", "runs"})  # apps; those of others may merge their migrations


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
    forget_old(copy.parent)
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


def forget_old(folder: Path) -> None:
    """Keep the newest; their names sort by time."""
    for path in sorted(folder.glob("db-*.sqlite3"))[:-KEPT]:
        path.unlink()
