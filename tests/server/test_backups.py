"""Backups: made while others write, complete or not used, restored only where nothing is lost."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from config import environment
from runs import bucket
from tests.server.test_serve import ROOT
from tests.servers import PrivateS3, find_postgres

ROW = "INSERT INTO django_session (session_key, session_data, expire_date) VALUES ('{0}', '', '2030-01-01')"


class Site:
    """The data folder of a stopped site with one shard, and the commands that an operator gives."""

    def __init__(self, folder: Path, url: str = "", **more: str) -> None:
        self.more = more
        self.data, self.target, self.url = folder / "data", folder / "backups", url
        (self.data / "keys").mkdir(parents=True)
        (self.data / "keys" / "site").write_text("secret")
        self.shard = self.data / "storage" / "datasets" / "shard"
        self.shard.parent.mkdir(parents=True)
        self.shard.write_text("tokens")
        (self.data / "storage" / "work").mkdir()
        (self.data / "storage" / "work" / "half").write_text("not to be copied")

    def asks(self, *command: str, given: IO[bytes] | None = None) -> tuple[int, str]:
        """Run a command of `manage.py`, with `given` as its standard input. Return its status and what it prints."""
        own = {"MANYHANDS_DATA": str(self.data), "DATABASE_URL": self.url, "REDIS_URL": ""}
        path = f"{find_postgres()}:{os.environ['PATH']}"
        asked = [sys.executable, str(ROOT / "manage.py"), *command]
        done = subprocess.run(
            asked,
            env=own | self.more | {"PATH": path},
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout

    def backed_up(self) -> Path:
        before = set(self.target.glob("*"))
        status, said = self.asks("backup", str(self.target))
        assert status == 0, said
        (made,) = set(self.target.glob("*")) - before
        return made


def leave(data: Path, name: str) -> None:
    with closing(sqlite3.connect(data / "db.sqlite3")) as database:
        database.execute("DELETE FROM django_session")
        database.execute(ROW.format(name))
        database.commit()


def left(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return str(database.execute("SELECT session_key FROM django_session").fetchone()[0])


@pytest.fixture
def site(tmp_path: Path, migrated_sqlite: Path) -> Site:
    found = Site(tmp_path)
    shutil.copy(migrated_sqlite, found.data)
    leave(found.data, "before")
    return found


def test_backup_is_restored_into_an_empty_folder(site: Site) -> None:
    made = site.backed_up()
    assert json.loads((made / "backup.json").read_text())["files"] == 2, "keys and shard, not what is in work"
    assert (site.data / "last-backup").exists()
    shutil.rmtree(site.data)
    status, said = site.asks("restore", str(made))
    assert status == 0, said
    assert left(site.data / "db.sqlite3") == "before"
    assert (site.shard.read_text(), (site.data / "keys" / "site").read_text()) == ("tokens", "secret")


def test_files_that_have_not_changed_take_no_more_space(site: Site) -> None:
    first = site.backed_up()
    (site.data / "storage" / "new").write_text("more")
    later = site.backed_up()
    copies = [folder / "data" / "storage" / "datasets" / "shard" for folder in (first, later)]
    assert copies[0].samefile(copies[1])
    assert not copies[0].samefile(site.shard), "a copy, so that damage to the original does not reach it"
    assert (later / "data" / "storage" / "new").exists()


def test_database_with_accounts_is_replaced_only_if_asked(site: Site) -> None:
    made = site.backed_up()
    with closing(sqlite3.connect(site.data / "db.sqlite3")) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(accounts_person)")]
        values = ", ".join("1" if name in ("id", "is_active") else "''" for name in columns)
        database.execute(f"INSERT INTO accounts_person ({', '.join(columns)}) VALUES ({values})")
        database.commit()
    leave(site.data, "after")
    newer = site.data / "storage" / "newer"
    newer.write_text("made after the backup")
    (site.data / "keys" / "site").write_text("of another site")
    status, said = site.asks("restore", str(made))
    assert (status, "E470" in said, left(site.data / "db.sqlite3")) == (1, True, "after")
    status, said = site.asks("restore", str(made), "--replace")
    assert status == 0, said
    assert left(site.data / "db.sqlite3") == "before"
    (kept,) = (site.data / "backups").iterdir()
    assert left(kept) == "after"
    assert (site.data / "keys" / "site").read_text() == "secret", "the keys belong to the database"
    assert newer.exists(), "files are never deleted: they may be newer than the backup"


@pytest.mark.parametrize("damage", ["interrupted", "changed", "lost", "parent"])
def test_what_is_not_a_complete_backup_is_refused(site: Site, damage: str) -> None:
    made = site.backed_up()
    leave(site.data, "after")
    match damage:
        case "interrupted":
            (made / "backup.json").unlink()
        case "changed":
            (made / "database.sqlite3").write_bytes(b"SQLite format 3")
        case "lost":
            (made / "data" / "storage" / "datasets" / "shard").unlink()
    status, said = site.asks("restore", str(made.parent if damage == "parent" else made))
    assert status == 1
    assert "E471" in said
    assert made.name in said
    assert left(site.data / "db.sqlite3") == "after"


def test_dump_of_something_else_is_refused(site: Site) -> None:
    with (site.data / "keys" / "site").open("rb") as given:
        status, said = site.asks("backup", str(site.target), "--dump", "-", given=given)
    assert (status, "E470" in said) == (1, True)
    assert not list(site.target.glob("*/backup.json"))


def test_no_backup_inside_what_is_backed_up(site: Site) -> None:
    site.target = site.data / "backups"
    status, said = site.asks("backup", str(site.target))
    assert (status, "E470" in said) == (1, True)


@pytest.mark.check
def test_postgresql(tmp_path: Path, postgres_url: str) -> None:
    name = f"backup_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    site = Site(tmp_path, postgres_url.replace("/postgres?", f"/{name}?", 1))
    assert site.asks("migrate", "-v", "0")[0] == 0
    with psycopg.connect(site.url, autocommit=True) as database:
        database.execute(ROW.format("before"))
        made = site.backed_up()
        database.execute("UPDATE django_session SET session_key = 'after'")
    status, said = site.asks("restore", str(made), "--replace")
    assert status == 0, said
    with psycopg.connect(site.url) as database:
        assert database.execute("SELECT session_key FROM django_session").fetchone() == ("before",)
    assert list((site.data / "backups").glob("db-*.dump"))
    dump = (made / "database.dump").open("rb")
    with dump:
        status, said = site.asks("backup", str(tmp_path / "more"), "--dump", "-", given=dump)
    assert status == 0, said
    (again,) = (tmp_path / "more").iterdir()
    assert (again / "database.dump").read_bytes() == (made / "database.dump").read_bytes()
    shutil.rmtree(site.data)
    status, said = site.asks("restore", str(again), "--only-files")
    assert status == 0, said
    assert site.shard.exists()
    site.url = ""
    status, said = site.asks("restore", str(made))
    assert (status, "another database" in said) == (1, True)


def test_files_in_a_bucket_are_listed_and_not_copied(site: Site, s3: PrivateS3, settings: Any) -> None:
    site.more = s3.settings()
    settings.S3 = environment.bucket("MANYHANDS_S3", environ=site.more)
    bucket.upload(site.shard, "datasets/shard")
    made = site.backed_up()
    assert json.loads((made / "bucket.json").read_text()) == {"datasets/shard": len("tokens")}
    assert not (made / "data" / "storage").exists()
    shutil.rmtree(site.data)
    assert "it lists" not in site.asks("restore", str(made))[1]
    bucket.delete("datasets")
    status, said = site.asks("restore", str(made))
    assert (status, "1 files that it lists, such as datasets/shard, are not in the bucket" in said) == (0, True), said
    site.more = {}
    assert "are not in a bucket; set MANYHANDS_S3" in site.asks("restore", str(made))[1]
