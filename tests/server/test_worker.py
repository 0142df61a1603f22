"""`serve` without a worker and a relay, and the worker as a separate process."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.server.test_serve import PATIENCE_S, ROOT, is_relay, serving, where


def worker(data: Path, redis: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "manage.py"), "worker"]
    own = {**os.environ, "MANYHANDS_DATA": str(data), "DATABASE_URL": "", "REDIS_URL": redis}
    return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_site_without_relay_and_worker(tmp_path: Path, migrated_sqlite: Path, redis_url: str) -> None:
    shutil.copy(migrated_sqlite, tmp_path)
    with serving(tmp_path, "--no-relay", "--no-worker", REDIS_URL=redis_url) as site:
        url = where(tmp_path, site)["url"]
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{url}/readyz")
        with refusal.value as answer:
            assert json.load(answer) == {"status": "not ready", "down": ["worker"]}
        process = psutil.Process(site.pid)
        assert not any(is_relay(child) for child in process.children())
        site.send_signal(signal.SIGTERM)
        said, _ = site.communicate(timeout=PATIENCE_S)
    assert site.returncode == 0
    assert "Traceback" not in said
    assert not (tmp_path / "relay").exists()


@pytest.mark.parametrize(
    ("options", "redis", "name"),
    [(("--no-worker",), "", "--no-worker"), (("--no-relay", "--relay-port", "9000"), "", "--relay-port")],
)
def test_what_nobody_would_do_is_an_error(tmp_path: Path, options: tuple[str, ...], redis: str, name: str) -> None:
    with serving(tmp_path, *options, REDIS_URL=redis) as site:
        said, _ = site.communicate(timeout=PATIENCE_S)
    assert site.returncode == 1
    assert said.startswith(f"E405: The setting {name} is not valid")


def test_a_worker_without_redis_is_an_error(tmp_path: Path) -> None:
    with worker(tmp_path, "") as process:
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert said.startswith("E405: The setting REDIS_URL is not valid")


def test_a_worker_works_until_it_is_asked_to_stop(tmp_path: Path, migrated_sqlite: Path, redis_url: str) -> None:
    shutil.copy(migrated_sqlite, tmp_path)
    with worker(tmp_path, redis_url) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "The worker is ready. Ctrl-C stops it.\n"
            assert (tmp_path / "worker-seen").exists()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert (process.returncode, said) == (0, "")
