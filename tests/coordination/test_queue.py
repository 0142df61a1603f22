"""The contract of the task queue, in memory or over Redis: interrupted work is completed once after a restart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coordination.engines import PATIENCE_S

PROGRAM = Path(__file__).with_name("worker_process.py")


@pytest.fixture(params=["embedded", "redis"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the environment for each queue. Celery names queues by address, so the test uses a Redis database of its
    own."""
    redis = request.getfixturevalue("redis_url").rpartition("/")[0] + "/9" if request.param == "redis" else ""
    own = {"MANYHANDS_DATA": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": redis}
    return {**os.environ, **own}


def live(life: str, environment: dict[str, str]) -> str:
    command = [sys.executable, str(PROGRAM), life]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_restart_has_interrupted_is_done_once(environment: dict[str, str]) -> None:
    live("draft", environment)
    assert json.loads(live("work", environment)) == {
        "requeued": 1,  # the task that prepares the text
        "state": "finished",
        "shards": 1,
        "snapshots": 1,
        "told": ["created", "finished", "opened", "opened", "prepared"],
        "left": 0,
    }
