"""Child processes for work that needs torch. They run `peer_agent.site_work`, which prints one JSON object.

This module also turns failures into numbered errors.
"""

import errno
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
from django.conf import settings
from django.db import DatabaseError

from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.publishing.child import facts_of, fault_of

logger = logging.getLogger(__name__)

TIMEOUT_S = 6 * 3600
BEAT_S = 5.0
KILLED = -9  # exit status of a child that the kernel kills for lack of memory
LEAST_MEMORY = 2_000_000_000
# What Python, torch and Rust print when an allocation fails
OUT_OF_MEMORY = ("MemoryError", "can't allocate memory", "memory allocation of")
LIMITS = "from runs.parent import take_at_most; take_at_most({}); "
BOOTSTRAP = (
    "import runpy; from runs.parent import leave_with_parent; leave_with_parent(); "
    "runpy.run_module('peer_agent.site_work', run_name='__main__', alter_sys=True)"
)

_running: set["subprocess.Popen[str]"] = set()
_lock = threading.Lock()
_is_stopping = threading.Event()
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
DISK_FULL = "53100"  # PostgreSQL's SQLSTATE code for a full disk


class ChildStopped(Exception):
    """Raised if a child was killed because the site is shutting down. Its job runs again when the site next starts."""


def run_child(
    arguments: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    secret: str = "",
    more: Mapping[str, str] | None = None,
    beat: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run a child process and return the JSON object on its last line. The child reads `secret` from standard input.

    `beat` is called every few seconds. If `beat` raises an exception, the child is killed. Raises ChildStopped if the
    site is shutting down, or a Problem with the fault that the child reports. Raises Problem E469 if the child runs out
    of memory, and E327 if it takes too long or dies without reporting a fault.
    """
    command = [sys.executable, "-c", LIMITS.format(memory_limit()) + BOOTSTRAP, *arguments]
    child = _start(command, {**child_environment(), **(more or {})})
    try:
        output, errors = _waited_for(child, secret, timeout_s, beat)
    except subprocess.TimeoutExpired as error:
        raise Problem.of("E327", reason=f"it took longer than {timeout_s:g} s") from error
    finally:
        with _lock:
            _running.discard(child)
    if _is_stopping.is_set() and child.returncode:
        raise ChildStopped
    if child.returncode:
        raise Problem(_fault_in(errors, child.returncode))
    return facts_of(output)


def _waited_for(
    child: "subprocess.Popen[str]", secret: str, timeout_s: float, beat: Callable[[], None] | None
) -> tuple[str, str]:
    """Return the child's output and errors. Raises TimeoutExpired after `timeout_s`, or any exception from `beat`."""
    until, said = time.monotonic() + timeout_s, secret
    try:
        while True:
            left_s = until - time.monotonic()
            try:
                return child.communicate(said or None, timeout=left_s if beat is None else min(BEAT_S, left_s))
            except subprocess.TimeoutExpired:
                if beat is None or left_s <= BEAT_S:
                    raise
                said = ""  # the secret has been sent; output received so far is kept
                beat()
    except BaseException:
        child.kill()
        child.communicate()
        raise


def stop_children() -> None:
    """Kill all running children and prevent new ones, because this process is about to exit."""
    _is_stopping.set()
    with _lock:
        for child in _running:
            child.kill()


def child_environment() -> dict[str, str]:
    """Return a child's environment: paths and a thread limit, but none of the site's secrets."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    paths = (str(settings.ROOT), str(settings.ROOT / "platform"))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": threads}


def _start(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    with _lock:
        if _is_stopping.is_set():
            raise ChildStopped
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        _running.add(child)
        return child


def memory_limit() -> int:
    """Return how many bytes a child may allocate: MANYHANDS_CHILD_MEMORY_MB, or three quarters of the memory."""
    chosen = int(settings.CHILD_MEMORY_MB) * 1_000_000
    return chosen or max(LEAST_MEMORY, psutil.virtual_memory().total * 3 // 4)


def _fault_in(errors: str, status: int) -> Fault:
    fault = fault_of(errors)
    if status == KILLED or any(sign in (fault.text if fault is not None else errors) for sign in OUT_OF_MEMORY):
        logger.error("a child ran out of memory: %s", errors[-2000:])
        return Fault.of("E469", limit=f"{memory_limit() / 1e9:.1f} GB")
    if fault is not None:
        return fault
    logger.error("a child ended with %s: %s", status, errors[-2000:])
    return Fault.of("E327", reason=f"status {status}")


def disk_fault(error: BaseException | None) -> Fault | None:
    """Return error E328, which names no folder, if `error` means that the disk is full or failing; otherwise, None."""
    cause = error.__cause__ if isinstance(error, DatabaseError) else error
    is_full = (
        getattr(cause, "errno", None) in NO_ROOM
        or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(cause, "sqlstate", None) == DISK_FULL
    )
    return Fault.of("E328") if is_full else None


@contextmanager
def faults_to(record: Callable[[Fault], None], code: str) -> Iterator[None]:
    """Pass the fault of any exception in the block to `record`. An unexpected exception counts as error `code`.

    A ChildStopped is ignored, because the next start repeats the job. Problem E472 is raised again, so that the job is
    retried when the bucket can be used.
    """
    try:
        yield
    except ChildStopped:
        logger.info("stopped with the site; done again at the next start")
    except Problem as problem:
        logger.warning("%s", problem)
        if problem.fault.code == codes.BUCKET_AWAY:
            raise
        # The child's message may name a folder on the disk.
        record(Fault.of("E328") if problem.fault.code == codes.DISK_FULL else problem.fault)
    except Exception as error:
        logger.exception("unforeseen")
        # Other messages may reveal folders on this machine, and everyone can read the page.
        record(disk_fault(error) or Fault.of(code, reason=type(error).__name__))
