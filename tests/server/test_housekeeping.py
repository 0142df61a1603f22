"""Housekeeping: the site clears old rows at intervals, even after a database error."""

import asyncio
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.utils import timezone

from accounts.models import Person
from notices import services as notices
from notices.models import Notice, Way
from server import housekeeping
from tests.server.test_serve import serving, wait_until


def test_old_notices_and_sessions_go(volunteer: Person) -> None:
    for name, left in (("old", -timedelta(seconds=1)), ("new", timedelta(days=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=timezone.now() + left)
    notices.send_test(person=volunteer, way=Way.WEBHOOK)
    Notice.objects.update(at="2020-01-01T00:00:00Z")
    notices.save_address(person=volunteer, address="teo@example.org")
    housekeeping._clear()
    assert [notice.event for notice in Notice.objects.all()] == ["confirm"]
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]


async def test_it_is_done_again_after_the_database_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    done: asyncio.Queue[None] = asyncio.Queue()
    loop, faults = asyncio.get_running_loop(), iter([OperationalError("away"), None])

    def clear() -> None:
        loop.call_soon_threadsafe(done.put_nowait, None)
        if (fault := next(faults, None)) is not None:
            raise fault

    migrated: list[bool] = []
    monkeypatch.setattr(housekeeping, "_clear", clear)
    monkeypatch.setattr(housekeeping, "_change_tables", lambda: migrated.append(True))
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.0)
    stop = asyncio.Event()
    keeping = asyncio.create_task(housekeeping.keep_house(stop))
    async with asyncio.timeout(120):
        for _ in range(2):
            await done.get()
        stop.set()
        await keeping
    assert migrated, "waiting migrations are looked for as well"


def test_a_site_does_it_as_it_starts(tmp_path: Path, migrated_sqlite: Path) -> None:
    shutil.copy(migrated_sqlite, tmp_path)
    row = ("old", "", "2020-01-01 00:00:00")
    with sqlite3.connect(tmp_path / "db.sqlite3") as database:
        database.execute("INSERT INTO django_session (session_key, session_data, expire_date) VALUES (?, ?, ?)", row)
    database.close()

    def is_gone() -> bool:
        with sqlite3.connect(tmp_path / "db.sqlite3", timeout=20) as database:
            (rows,) = database.execute("SELECT count(*) FROM django_session").fetchone()
        database.close()
        return bool(rows == 0)

    with serving(tmp_path):
        wait_until(is_gone)
