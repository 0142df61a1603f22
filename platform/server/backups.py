"""Backups of a whole site, restored by a command, and copies of SQLite's file before its tables change.

    <target>/2026-11-29T143005/backup.json        when and from what it was made; the sha256 of the database's file
    <target>/2026-11-29T143005/database.dump      PostgreSQL's dump, or database.sqlite3
    <target>/2026-11-29T143005/data/keys/…        the data folder: keys, storage, relays of this machine

    <target>/2026-11-29T143005/bucket.json        keys and sizes of the files in the bucket, which are not copied

A backup is made while the site runs. It is a complete folder, but files that have not changed since the last backup in
the same target are hard links to that backup's files. A folder without `backup.json` is an interrupted backup.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import QuerySet
from django.db.models.functions import Now
from msgspec import Struct, to_builtins

from accounts.models import Person
from peer_agent.protocol.errors import Problem, disk_errors
from runs import bucket
from runs.models import Head
from server.lock import own_place
from web.health import backup_mark

KEPT = 5  # number of copies of SQLite's file that are kept
FACTS, KEYS = "backup.json", "bucket.json"
CLAIM_S, LOOK_S = 12.0, 0.5  # seconds: longer than a host's claim; between checks that it has expired
LEFT_OUT = frozenset({"work", "tentative"})  # folders whose files do not outlive the process that writes them
UNFINISHED = (".new", ".part", ".tmp", ".lock")


class Backup(Struct, frozen=True):
    """When a backup was taken, its database file with its SHA-256, and the number of files and bytes in `data`."""

    at: str
    database: str
    sha256: str
    files: int
    size: int


# --- Making one


def back_up(
    target: Path, *, keep: int, dump: IO[bytes] | None = None, now: datetime | None = None
) -> tuple[Path, Backup]:
    """Copy the database and the data folder into a new folder of `target`. Delete all but the `keep` newest backups.

    `dump` is the output of `pg_dump --format=custom`, if that program runs on a different machine. The site writes
    files before their rows. Files are copied before and after the database, so the backup has every file that a row
    names. Raises Problem E470 if the site cannot be backed up to `target`, E106 if the disk is full, or E472 if the
    bucket cannot be used.
    """
    at = now or datetime.now(UTC)
    data, target = Path(settings.DATA).resolve(), target.resolve()
    if target.is_relative_to(data):
        raise Problem.of("E470", path=target, reason="it is inside the data folder")
    with disk_errors(target):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        previous = max(backups_in(target), default=None)
        folder = target / f"{at:%Y-%m-%dT%H%M%S}"
        folder.mkdir(mode=0o700)
        before = previous / "data" if previous is not None else None
        _copy_files(data, folder / "data", before)
        database = _dump(folder, dump)
        _copy_files(data, folder / "data", before)
        if bucket.is_on():
            (folder / KEYS).write_text(json.dumps({each.key: each.size for each in bucket.found("")}))
        copied = [path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file()]
        made = Backup(f"{at:%Y-%m-%dT%H:%M:%SZ}", database.name, _sha256(database), len(copied), sum(copied))
        draft = folder / f"{FACTS}.new"
        draft.write_text(json.dumps(to_builtins(made), indent=2))
        draft.rename(folder / FACTS)
        for old in sorted(backups_in(target))[:-keep]:
            shutil.rmtree(old)
        backup_mark().touch()
    return folder, made


def backups_in(target: Path) -> list[Path]:
    """Return the complete backups in a folder."""
    return [path.parent for path in target.glob(f"*/{FACTS}")]


def _copy_files(data: Path, target: Path, previous: Path | None) -> None:
    for path in _files_of(data):
        name = path.relative_to(data)
        copy = target / name
        with suppress(FileNotFoundError):  # the site has deleted the file in the meantime
            if not _is_same(path, copy):
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                copy.unlink(missing_ok=True)
                if previous is not None and _is_same(path, previous / name):
                    os.link(previous / name, copy)
                else:
                    shutil.copy2(path, copy)


def _is_same(path: Path, copy: Path) -> bool:
    """Return True if `copy` has the size and the modification time of the file at `path`.

    Raises FileNotFoundError if there is no file at `path`.
    """
    ours = path.stat()
    with suppress(FileNotFoundError):
        theirs = copy.stat()
        return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)
    return False


def _files_of(data: Path) -> Iterator[Path]:
    """Yield the files to back up: keys, relays' folders and, if the site has no bucket, stored files.

    Folders for unfinished work, temporary files and lock files are left out.
    """
    stored = () if bucket.is_on() else (data / "storage",)
    for top in (data / "keys", *stored, *sorted(path for path in data.glob("relay*") if path.is_dir())):
        for folder, folders, names in os.walk(top):
            folders[:] = sorted(set(folders) - LEFT_OUT)
            yield from (Path(folder, name) for name in sorted(names) if not name.endswith(UNFINISHED))


def _dump(folder: Path, given: IO[bytes] | None) -> Path:
    """Write a consistent copy of the database to a file, or copy the dump `given` to it.

    Raises Problem E470 if `given` is not a dump, or if `pg_dump` fails.
    """
    if given is not None:
        path = folder / "database.dump"
        with path.open("wb") as file:
            shutil.copyfileobj(given, file)
        with path.open("rb") as file:
            if file.read(5) != b"PGDMP":
                raise Problem.of("E470", path="--dump", reason="this is not what `pg_dump --format=custom` writes")
        return path
    if connection.vendor == "sqlite":
        return _copy_sqlite(Path(connection.settings_dict["NAME"]), folder / "database.sqlite3")
    path = folder / "database.dump"
    _postgresql("pg_dump", "--format=custom", "--no-owner", "--no-privileges", "--file", str(path))
    return path


def _postgresql(program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs on this site's database. Raises Problem E470 if it is missing or fails."""
    known = connection.settings_dict
    names = {"PGDATABASE": "NAME", "PGUSER": "USER", "PGPASSWORD": "PASSWORD", "PGHOST": "HOST", "PGPORT": "PORT"}
    own = {variable: str(known[name]) for variable, name in names.items() if known.get(name)}
    try:
        command = [program, "--no-password", *arguments]
        subprocess.run(command, env=os.environ | own, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Problem.of("E470", path=program, reason="this program of PostgreSQL is not installed here") from error
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise Problem.of("E470", path=program, reason=reason) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Restoring one


def restore(source: Path, *, replaces: bool, only_files: bool = False) -> Backup:
    """Put a backup's database, keys and files in place.

    With `only_files`, leave the database alone, because `pg_restore` runs on a different machine. Existing files in the
    data folder, except keys, are kept because they may be newer: steps taken after the backup are recovered from a
    relay's log (rule 16). If a database is replaced, the old one is kept in `backups/` in the data folder.

    Raises Problem E404 if a site uses the data folder, E470 if the database is in use or may not be replaced, E471 if
    the backup is incomplete or for a different database, or E106 if the disk is full.
    """
    made = read_backup(source)
    data = Path(settings.DATA)
    with disk_errors(data):
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_place(data, alone=True):
            _refuse_data_in_use(replaces=replaces or only_files)
            for path in (path for path in (source / "data").rglob("*") if path.is_file()):
                name = path.relative_to(source / "data")
                if name.parts[0] == "keys" or not (data / name).exists():
                    (data / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    shutil.copy2(path, data / name)
            if not only_files:
                _load(source / made.database, data / "backups")
                call_command("migrate", verbosity=0, interactive=False)
    return made


def read_backup(source: Path) -> Backup:
    """Return the facts of a backup. Raises Problem E471 if it is incomplete, changed or for a different database."""
    try:
        made = Backup(**json.loads((source / FACTS).read_text()))
        sizes = [path.stat().st_size for path in (source / "data").rglob("*") if path.is_file()]
        digest = _sha256(source / made.database)
    except (OSError, ValueError, TypeError) as error:
        newest = max((path.name for path in backups_in(source)), default="")
        hint = f"its newest backup is {newest}" if newest else "it has no complete backup"
        raise Problem.of("E471", path=source, reason=hint) from error
    if (digest, len(sizes), sum(sizes)) != (made.sha256, made.files, made.size):
        raise Problem.of("E471", path=source, reason="files are missing, or have changed since it was made")
    if made.database.endswith(".sqlite3") != (connection.vendor == "sqlite"):
        raise Problem.of("E471", path=source, reason=f"{made.database} is for another database than DATABASE_URL names")
    return made


def missing_in_bucket(source: Path) -> list[str]:
    """Return the keys of files that a backup lists but this site's bucket lacks, or has in a different size.

    Raises Problem E472 if the bucket cannot be used.
    """
    listed = json.loads((source / KEYS).read_text()) if (source / KEYS).is_file() else {}
    there = {each.key: each.size for each in bucket.found("")} if listed and bucket.is_on() else {}
    return [key for key, size in listed.items() if there.get(key) != size]


def _refuse_data_in_use(*, replaces: bool) -> None:
    """Raise Problem E470 if a site uses the database, or if it has accounts and `replaces` is false."""
    if "accounts_person" not in connection.introspection.table_names():
        return
    name = connection.settings_dict["NAME"]
    claimed = Head.objects.filter(claim_expires__gt=Now())
    if connection.vendor != "sqlite" and not _is_over_within(CLAIM_S, claimed):
        raise Problem.of("E470", path=name, reason="a site is still using this database; stop it first")
    if Person.objects.exists() and not replaces:
        raise Problem.of("E470", path=name, reason="the database has accounts; --replace replaces it and keeps a copy")


def _is_over_within(seconds: float, claimed: QuerySet[Head]) -> bool:
    """Wait until the claims of a site that was just killed have expired. Return False if a running site renews them."""
    until = time.monotonic() + seconds
    while claimed.exists():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def _load(dump: Path, kept: Path) -> None:
    """Replace the content of the site's database with a dump. First save the old content to the folder `kept`."""
    now = datetime.now(UTC)
    if connection.vendor == "sqlite":
        path = Path(connection.settings_dict["NAME"])
        if path.is_file() and path.stat().st_size:
            copy_database(path, kept, now)
        connections.close_all()
        for ending in ("", "-wal", "-shm"):
            path.with_name(path.name + ending).unlink(missing_ok=True)
        _copy_sqlite(dump, path)
        return
    if connection.introspection.table_names():
        kept.mkdir(mode=0o700, exist_ok=True)
        _postgresql("pg_dump", "--format=custom", "--file", str(kept / f"db-{now:%Y%m%d-%H%M%S-%f}.dump"))
    connections.close_all()
    database = str(connection.settings_dict["NAME"])
    whole = ("--clean", "--if-exists", "--no-owner", "--single-transaction")
    _postgresql("pg_restore", *whole, "--dbname", database, str(dump))


# --- Copies of SQLite's file before its tables change. `backups/` in the data folder keeps the newest five.


def pending_changes() -> int:
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def back_up_before_changes(data: Path, *, now: datetime | None = None) -> Path | None:
    """Copy SQLite's file if migrations are about to change it. Return the copy's path, or None if none was needed."""
    if connection.vendor != "sqlite":
        return None
    source = Path(connection.settings_dict["NAME"])
    if not source.is_file() or not source.stat().st_size or not pending_changes():
        return None
    copy = copy_database(source, data / "backups", now or datetime.now(UTC))
    for path in sorted(copy.parent.glob("db-*.sqlite3"))[:-KEPT]:
        path.unlink()
    return copy


def copy_database(source: Path, folder: Path, now: datetime) -> Path:
    """Make a consistent copy of SQLite's file, named after the time. The copy appears complete or not at all."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return _copy_sqlite(source, folder / f"db-{now:%Y%m%d-%H%M%S-%f}.sqlite3")


def _copy_sqlite(source: Path, target: Path) -> Path:
    """Copy SQLite's file with its write-ahead log. Other processes may write to the database at the same time."""
    draft = target.with_suffix(".part")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as reading, closing(sqlite3.connect(draft)) as writing:
        reading.backup(writing)
    return draft.rename(target)
