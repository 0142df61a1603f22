"""`serve` as a process: its output, locks and relay, and how it ends."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from peer_agent.protocol.errors import Problem
from server.reachability import bound_socket, check_port
from server.relay import advertised

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@contextmanager
def serving(data: Path, *options: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", "0", *options]
    own = {**os.environ, "MANYHANDS_DATA": str(data), "DATABASE_URL": "", "REDIS_URL": "", **environment}
    with subprocess.Popen(
        command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as site:
        try:
            yield site
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(site.pid, signal.SIGKILL)


def wait_until(condition: Any) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def where(data: Path, site: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait for `serve.json` and return its contents. Fail if the process has ended."""
    announced = data / "serve.json"
    wait_until(lambda: announced.exists() or site.poll() is not None)
    assert site.poll() is None, f"the site ended: {site.communicate(timeout=PATIENCE_S)[0]}"
    found: dict[str, Any] = json.loads(announced.read_text())
    return found


def is_relay(child: psutil.Process) -> bool:
    """Return True if the process is a relay. A process that was just killed has no command line."""
    try:
        return "relay" in child.cmdline()
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False


def relay_of(site: "subprocess.Popen[str]") -> psutil.Process:
    found: list[psutil.Process] = []

    def is_there() -> bool:
        found[:] = [child for child in psutil.Process(site.pid).children() if is_relay(child)]
        return bool(found)

    wait_until(is_there)
    return found[0]


def test_one_command_is_the_whole_site_and_ends_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        url = where(tmp_path, site)["url"]
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert json.load(answer) == {"status": "ready"}
        with urllib.request.urlopen(f"{url}/static/manyhands.css") as answer:
            assert answer.status == 200
        relay = relay_of(site)
        site.send_signal(signal.SIGINT)
        said, _ = site.communicate(timeout=PATIENCE_S)
        assert site.returncode == 0
        assert f"Manyhands is at {url}/" in said
        assert f"{url}/operator/" in said
        assert "Traceback" not in said
        assert not (tmp_path / "backups").exists(), "a new database needs no backup"
        assert not relay.is_running()
        assert not (tmp_path / "serve.json").exists()


def test_what_a_site_keeps_is_for_its_own_account_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    left = data / "storage" / "work" / "of_a_site_that_was_killed"
    left.mkdir(parents=True)
    (left / "out").write_bytes(b"half of a text")
    before = {data, data / "storage", left.parent}
    with serving(data) as site:
        where(data, site)
        made = [path for path in data.rglob("*") if path not in before]
        assert data / "db.sqlite3" in made
        assert [path for path in made if path.stat().st_mode & 0o077] == []
        assert not left.exists(), "nobody goes on with it"


@dataclass
class Site:
    data: Path
    process: "subprocess.Popen[str]"
    url: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Site]:
    """Yield a running site, shared by tests that do not change it."""
    data = tmp_path_factory.mktemp("site")
    shutil.copy(migrated_sqlite, data)
    with serving(data) as process:
        yield Site(data, process, where(data, process)["url"])


def test_a_second_process_is_kept_out_of_the_data_folder(site: Site) -> None:
    with serving(site.data) as second:
        said, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert f"E404: Another site process ({site.process.pid})" in said


def test_its_relay_is_started_again(site: Site) -> None:
    first = relay_of(site.process)
    first.kill()
    wait_until(lambda: relay_of(site.process).pid != first.pid)


def test_nobody_fills_the_disk_before_saying_who_they_are(site: Site) -> None:
    """The site refuses the request before it reads any of the announced 500 MB."""
    with socket.create_connection(("127.0.0.1", urlsplit(site.url).port), timeout=PATIENCE_S) as stranger:
        stranger.sendall(b"POST /runs/new/ HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 500000000\r\n\r\n")
        heard = b""
        while part := stranger.recv(65_536):
            heard += part
    assert heard.startswith(b"HTTP/1.1 413")
    assert b"E362" in heard


def test_the_relays_token_is_in_no_command_line(site: Site) -> None:
    relay = relay_of(site.process)
    family = [psutil.Process(site.process.pid), *psutil.Process(site.process.pid).children(recursive=True)]
    assert relay in family
    assert not any("mh_" in part for process in family for part in process.cmdline())
    wait_until((site.data / "relay" / "sites.json").exists)  # the relay has used its token to log in


def test_everything_leaves_with_the_parent(tmp_path: Path, migrated_sqlite: Path) -> None:
    shutil.copy(migrated_sqlite, tmp_path)
    command = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", "0", "--attached"]
    code = f"import subprocess; subprocess.Popen({command!r}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL).wait()"
    own = {**os.environ, "MANYHANDS_DATA": str(tmp_path), "DATABASE_URL": "", "REDIS_URL": ""}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as parent:
        site = psutil.Process(where(tmp_path, parent)["pid"])
        wait_until(site.children)
        family = [site, *site.children(recursive=True)]
        parent.kill()
    wait_until(lambda: not any(process.is_running() for process in family))


class TestPorts:
    def test_a_taken_port_names_its_holder(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(Problem, match=rf"E401: Port {port} is taken by .*\(process {os.getpid()}\)"):
                check_port("127.0.0.1", port)

    def test_a_free_port_is_held_from_now_on(self) -> None:
        with bound_socket("127.0.0.1", 0) as bound, pytest.raises(Problem, match="E401"):
            check_port("127.0.0.1", bound.getsockname()[1])

    def test_an_address_that_is_not_here(self) -> None:
        with pytest.raises(Problem, match=r"E405.*--host"):
            check_port("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("url", "port", "address"),
    [
        ("http://127.0.0.1:8000", 9000, ""),
        ("http://192.168.1.5:8000", 9000, "ws://192.168.1.5:9000"),
        ("https://hands.example", 9000, "wss://hands.example:9000"),
        ("https://hands.example", 0, ""),
    ],
)
def test_a_relay_is_announced_where_others_reach_it(url: str, port: int, address: str) -> None:
    assert advertised(url, port) == address
