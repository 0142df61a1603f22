"""Child processes: their answers, faults and environment."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection

from peer_agent.protocol.errors import Problem
from runs import processes
from runs.processes import ChildStopped, child_environment, disk_fault, run_child

PREPARATION = '{"data":"text","vocab":300}'


def test_the_last_line_is_the_answer(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Many hands make light work. " * 2000)
    made = run_child(["prepare", str(text), str(tmp_path / "out"), "--preparation", PREPARATION])
    assert {"vocab", "size", "characters", "shards", "heldout", "unigram_entropy"} <= made.keys()
    assert (tmp_path / "out" / "shards" / f"{made['shards'][0]['digest']}.safetensors").exists()


def test_a_fault_that_the_child_names_is_ours(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"")
    with pytest.raises(Problem, match="E303"):
        run_child(["prepare", str(tmp_path / "text"), str(tmp_path / "out"), "--preparation", PREPARATION])


def test_a_child_that_dies_without_a_word_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BOOTSTRAP", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(Problem, match=r"E469.* GB of memory"):
        run_child([])


@pytest.mark.parametrize(
    "greed",
    ["bytearray(3 * 10**9)", "import torch; torch.zeros(750_000_000)"],
)
def test_a_child_has_a_bound_on_memory(settings: Any, monkeypatch: pytest.MonkeyPatch, greed: str) -> None:
    settings.CHILD_MEMORY_MB = 2000
    monkeypatch.setattr(processes, "BOOTSTRAP", greed)
    with pytest.raises(Problem, match=r"E469.*2\.0 GB"):
        run_child([])


def test_a_child_opens_few_files_and_leaves_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "[r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE)]"
    told = f"import json, resource as r; print(json.dumps({{'limits': {limits}}}))"
    monkeypatch.setattr(processes, "BOOTSTRAP", told)
    assert run_child([]) == {"limits": [[1024, 1024], [0, 0]]}


def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BOOTSTRAP", "import signal; signal.pause()")
    with pytest.raises(Problem, match=r"E327.*longer than 0\.2 s"):
        run_child([], timeout_s=0.2)


def test_nothing_is_started_once_the_site_goes_down() -> None:
    processes.stop_children()
    try:
        with pytest.raises(ChildStopped):
            run_child([])
    finally:
        processes._is_stopping.clear()


def test_a_child_learns_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHANDS_SECRET_KEY", "very secret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:secret@host/db")
    assert set(child_environment()) <= {"PATH", "HOME", "TMPDIR", "SYSTEMROOT", "PYTHONPATH", "OMP_NUM_THREADS"}
    assert child_environment()["PATH"] == os.environ["PATH"]


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
