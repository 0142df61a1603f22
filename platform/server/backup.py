"""A copy of SQLite before its tables change: `backups/` in the data folder, the newest five."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

KEPT = 5


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
