"""Changes of the tables while processes of two versions run on one PostgreSQL database.

A migration that the previous version cannot live with, such as the removal of a column, has `after = True`. It is
applied only once no process of another version is connected to the database.
"""

from typing import NamedTuple

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from config.environment import CONNECTS_AS
from peer_agent.protocol.errors import Problem

# Apps of this project; apps of others may replace their migrations.
OURS = frozenset({"accounts", "coordination", "jobs", "notices", "runs"})

Name = tuple[str, str]  # an app and a migration


class Pending(NamedTuple):
    """The migrations to apply now, the ones that wait, and the versions for whose end they wait."""

    now: list[Name]
    waiting: list[Name]
    versions: list[str]


def pending() -> Pending:
    """Return the migrations that this version knows and the database lacks, in order."""
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
    """Return the other versions of the site that are connected to this database. SQLite serves only one process."""
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
