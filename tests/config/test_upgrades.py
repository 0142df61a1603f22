"""Migrations while another version of the site is running."""

from importlib import import_module

import psycopg
import pytest
from django.db import connection, migrations
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import translation

from config.upgrades import OURS, other_versions, pending
from tests.runs.factories import *  # noqa: F403  (`__all__` there is the list)
from web.health import State, check_database

# Migrations of the first release. No earlier version runs beside them.
FIRST = {"accounts": "0001", "coordination": "0002", "jobs": "0001", "notices": "0002", "runs": "0007"}
BREAKING = (migrations.DeleteModel, migrations.RemoveField, migrations.RenameField, migrations.RenameModel)


def test_migrations_that_the_previous_version_cannot_live_with_wait() -> None:
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if app in OURS and name[:4] > FIRST[app] and any(isinstance(part, BREAKING) for part in migration.operations):
            assert getattr(migration, "after", False), f"{app}.{name} needs `after = True`, see config/upgrades.py"


@pytest.fixture
def lacking(any_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that lacks the last two migrations of `runs`, of which the first one must wait for other versions."""
    for name in ("0011_disputes", "0012_old_rechecks"):
        MigrationRecorder(connection).migration_qs.filter(app="runs", name=name).delete()
    monkeypatch.setattr(import_module("runs.migrations.0011_disputes").Migration, "after", True, raising=False)


@pytest.mark.usefixtures("lacking")
def test_migrations_wait_while_another_version_is_connected(any_database: str) -> None:
    both = [("runs", "0011_disputes"), ("runs", "0012_old_rechecks")]
    assert pending() == (both, [], [])
    if any_database != "postgresql":
        assert other_versions() == []
        return
    given = {key: connection.get_connection_params()[key] for key in ("host", "user", "dbname")}
    with psycopg.connect(**given, application_name="manyhands 0.0.9"):
        _look_again()
        assert pending() == ([], both, ["0.0.9"]), "the second one needs the first"
        with translation.override("en"):
            finding = check_database()
        assert (finding.state, finding.said) == (
            State.LOOK,
            "2 changes of the tables wait until version 0.0.9 has stopped.",
        )
    with psycopg.connect(**given, application_name="psql"):
        _look_again()
        assert pending() == (both, [], [])


def _look_again() -> None:
    """Let PostgreSQL list its connections anew. Within a transaction, it otherwise repeats the first list."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
