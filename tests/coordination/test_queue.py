"""Jobs outlive the worker: what one life of it was asked for, or was killed at, the next life does once.

Wake-ups stay in the process, or go over Redis.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.coordination.engines import PATIENCE_S

PROGRAM = Path(__file__).with_name("worker_process.py")
DONE = {
    "state": "finished",
    "shards": 1,
    "snapshots": 1,
    "told": ["created", "finished", "opened", "opened", "prepared"],
}


@pytest.fixture(params=["embedded", "redis"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a worker. Celery names queues by address, so the test uses a Redis database of its
    own."""
    redis = request.getfixturevalue("redis_url").rpartition("/")[0] + "/9" if request.param == "redis" else ""
    own = {"MANYHANDS_DATA": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": redis}
    return {**os.environ, **own}


def live(life: str, environment: dict[str, str]) -> str:
    command = [sys.executable, str(PROGRAM), life]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def killed_at_work(environment: dict[str, str]) -> None:
    """Kill a worker as soon as it has begun its first job."""
    command = [sys.executable, str(PROGRAM), "hang"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        finally:
            process.kill()


def test_a_wake_up_reaches_the_worker(environment: dict[str, str]) -> None:
    live("wake", environment)


def test_what_was_requested_before_a_restart_is_done_once(environment: dict[str, str]) -> None:
    live("draft", environment)
    found: dict[str, Any] = json.loads(live("work", environment))
    assert found["found"] == [["prepare dataset", "queued"]]
    assert {name: found[name] for name in DONE} == DONE
    assert [name for name, _ in found["begun"]] == ["prepare", "initial", "release"]


def test_a_killed_workers_job_is_done_once_its_lease_ends(environment: dict[str, str]) -> None:
    killed_at_work(environment)
    found: dict[str, Any] = json.loads(live("work", environment))
    assert found["found"] == [["prepare dataset", "running"]]
    assert {name: found[name] for name in DONE} == DONE
    assert [name for name, _ in found["begun"]] == ["prepare", "initial", "release"]
    assert found["begun"][0][1] >= found["leased until"]
