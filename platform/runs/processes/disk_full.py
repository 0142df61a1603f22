"""Whether an error says that there is no room left, whoever met it first: the file system or the database."""

import errno
import sqlite3

from django.db import DatabaseError

from peer_agent.protocol.errors import Fault

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
DISK_FULL = "53100"  # PostgreSQL's word for it


def disk_fault(error: BaseException | None) -> Fault | None:
    """E328 where the error is about the disk; it names no folder."""
    cause = error.__cause__ if isinstance(error, DatabaseError) else error
    is_full = (
        getattr(cause, "errno", None) in NO_ROOM
        or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(cause, "sqlstate", None) == DISK_FULL
    )
    return Fault.of("E328") if is_full else None
