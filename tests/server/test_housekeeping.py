"""A site clears up by itself, also after a while without its database."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from server import housekeeping
from tests.server.test_serve import serving, wait_until


async def test_it_is_done_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done: asyncio.Queue[None] = asyncio.Queue()
    loop, faults = asyncio.get_running_loop(), iter([None, OperationalError("away"), None])

    def clear(_: Any) -> None:
        loop.call_soon_threadsafe(done.put_nowait, None)
        if (fault := next(faults, None)) is not None:
            raise fault

    monkeypatch.setattr(housekeeping, "clear_expired", clear)
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.0)
    stop = asyncio.Event()
    keeping = asyncio.create_task(housekeeping.keep_house(stop))
    async with asyncio.timeout(120):
        for _ in range(3):
            await done.get()
        stop.set()
        await keeping


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
