"""The tests' private servers answer, and end when the tests do."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import servers

ROOT = Path(__file__).resolve().parent.parent
START_AND_WAIT = """
import sys, psutil
from tests import servers
with getattr(servers, sys.argv[1])() as url:
    print(psutil.Process().children()[0].pid, url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["private_postgres", "private_redis"])
def parent(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", START_AND_WAIT, request.param]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        yield process


def test_a_server_goes_when_its_parent_is_killed(parent: "subprocess.Popen[str]") -> None:
    assert parent.stdout
    guard_pid, url = parent.stdout.readline().split()
    guard = psutil.Process(int(guard_pid))
    (server,) = guard.children()
    parent.send_signal(signal.SIGKILL)
    guard.wait(servers.START_S)
    assert not server.is_running()
    if folder := re.search("host=(.+)", url):
        assert not Path(folder[1]).exists()


def test_a_server_that_does_not_start_shows_its_log() -> None:
    command = [sys.executable, "-c", "print('no room')"]
    with (
        pytest.raises(servers.ServerError, match=r"^E913 (?s:.)*no room"),
        servers.short_folder() as folder,
        servers.guarded(command, folder, "", lambda: False),
    ):
        pytest.fail("it was taken for started")


@pytest.mark.parametrize(("find", "number"), [("find_postgres", "E911"), ("find_redis", "E912")])
def test_a_missing_program_is_named_with_its_remedy(find: str, number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(servers, "wheel_folder", lambda *_: None)
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    with pytest.raises(servers.ServerError, match=rf"^{number} .*Run: "):
        getattr(servers, find)()
