"""Database migrations while processes of two versions of the site use one PostgreSQL database.

A migration with which the previous version would not work, such as the removal of a column, has `after = True`. It is
applied only once no process of another version is connected to the database.
"""

from typing import NamedTuple

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from config.environment import CONNECTS_AS
from peer_agent.protocol.errors import Problem

# Apps of this project. Other apps may replace their migrations, so an unknown migration of theirs is no error.
OURS = frozenset({"accounts", "coordination", "jobs", "notices", "runs"})

Name = tuple[str, str]  # an app and a migration


class Pending(NamedTuple):
    """The migrations to apply now, and those that must wait until no process of the other `versions` is running."""

    now: list[Name]
    waiting: list[Name]
    versions: list[str]


def pending() -> Pending:
    """Return the migrations that this version has but that are not yet applied to the database, in order."""
    executor = MigrationExecutor(connection)
    plan = [migration for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes())]
    versions = other_versions() if plan else []
    waiting: list[Name] = []
    for migration in plan if versions else ():
        if getattr(migration, "after", False) or set(migration.dependencies) & set(waiting):
            waiting.append((migration.app_label, migration.name))
    names = [(migration.app_label, migration.name) for migration in plan]
    return Pending([name for name in names if name not in waiting], waiting, versions)


def other_versions() -> list[str]:
    """Return the other versions of the site that are connected to this database.

    With SQLite, return an empty list, because only one process uses the database.
    """
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'manyhands %%' AND application_name <> %s ORDER BY 1",
            [CONNECTS_AS],
        )
        return [name.removeprefix("manyhands ") for (name,) in cursor.fetchall()]


def refuse_unknown_changes() -> None:
    """Raise Problem E418 if a newer version has applied a migration that this version does not know."""
    loader = MigrationExecutor(connection).loader
    for app, name in sorted(loader.applied_migrations.keys() - loader.disk_migrations.keys()):
        if app in OURS:
            raise Problem.of("E418", change=f"{app}.{name}")
