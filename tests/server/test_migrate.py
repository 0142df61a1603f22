"""`manage.py migrate` on an empty SQLite database, and after it was interrupted."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from server.management.commands.migrate import Command

BEGIN = """
import os, sys
sys.path[:0] = ["platform", "."]
import django
django.setup()
from django.core.management import call_command
from django.core.management.commands import migrate as plain
from django.db.migrations.recorder import MigrationRecorder
"""
ONE_BY_ONE = "call_command(plain.Command(), verbosity=0)"
KILLED = """
recorded = []
def record(*_):
    recorded.append(1)
    if len(recorded) == 10:
        os._exit(9)
MigrationRecorder.record_applied = record
call_command("migrate", verbosity=0)
"""


def _run(data: Path, *command: str) -> int:
    data.mkdir(exist_ok=True)
    names = {"MANYHANDS_DATA": str(data), "DATABASE_URL": "", "DJANGO_SETTINGS_MODULE": "config.settings"}
    environ = {**os.environ, **names}
    return subprocess.run([sys.executable, *command], check=False, cwd=settings.ROOT, env=environ).returncode


def _clauses(sql: str) -> list[str]:
    """Return the columns and constraints of a CREATE TABLE statement, sorted."""
    found, depth = [""], 0
    for letter in sql[sql.index("(") + 1 : sql.rindex(")")]:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return sorted(clause.strip() for clause in found)


def _contents(data: Path) -> dict[str, object]:
    """Return each table's columns and number of rows, each index's definition, the migrations and the permissions."""
    with sqlite3.connect(data / "db.sqlite3") as database:
        parts = database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        tables = {name: sql for kind, name, sql in parts if kind == "table" and not name.startswith("sqlite_")}
        return {
            **{name: sql for kind, name, sql in parts if kind != "table"},
            **{name: _clauses(sql) for name, sql in tables.items()},
            "rows": {name: database.execute(f"SELECT count(*) FROM {name}").fetchone() for name in tables},
            "migrations": sorted(database.execute("SELECT app, name FROM django_migrations")),
            "permissions": sorted(database.execute("SELECT codename FROM auth_permission")),
        }


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The contents of a database to which Django applied the migrations one by one."""
    data = tmp_path_factory.mktemp("one-by-one")
    assert _run(data, "-c", BEGIN + ONE_BY_ONE) == 0
    return _contents(data)


def test_empty_database_gets_what_the_migrations_would_make(tmp_path: Path, one_by_one: dict[str, object]) -> None:
    assert _run(tmp_path, "manage.py", "migrate", "-v0") == 0
    assert _contents(tmp_path) == one_by_one
    assert len(one_by_one) > 100


def test_migrations_are_done_even_if_the_first_attempt_is_killed(tmp_path: Path, one_by_one: dict[str, object]) -> None:
    assert _run(tmp_path, "-c", BEGIN + KILLED) == 9
    assert _run(tmp_path, "manage.py", "migrate", "-v0") == 0
    assert _contents(tmp_path) == one_by_one


@pytest.mark.django_db(transaction=True)
def test_database_with_tables_is_migrated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the tables exist")

    monkeypatch.setattr(Command, "_create_all", refuse)
    Command().run_from_argv(["manage.py", "migrate", "--verbosity=0"])
    assert connection.introspection.table_names()
