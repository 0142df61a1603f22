"""What a full disk looks like, and what it does not."""

import errno
import sqlite3

import pytest
from django.db import DatabaseError, connection

from runs.processes.disk_full import disk_fault


@pytest.mark.parametrize(
    ("error", "is_about_the_disk"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (ValueError("a value"), False),
        (DatabaseError("something else"), False),
        (None, False),
    ],
)
def test_what_is_about_the_disk(error: BaseException | None, *, is_about_the_disk: bool) -> None:
    assert (disk_fault(error) is not None) == is_about_the_disk


@pytest.mark.django_db
def test_a_database_without_room_says_so_too() -> None:
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        try:
            with pytest.raises(DatabaseError) as caught:
                cursor.execute("CREATE TABLE too_much AS SELECT randomblob(10000000) AS bytes")
        finally:
            cursor.execute("PRAGMA max_page_count = 1073741823")
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    fault = disk_fault(caught.value)
    assert fault is not None
    assert fault.code == "E328"
