"""The program of a bundle: the same commands without Python, and questions after a double click. The release workflow
builds real bundles and starts them (`scripts/bundle.py`).
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peer_agent import bundle
from peer_agent.display.status import Status, write_status
from peer_agent.machine.hardware import install_line
from peer_agent.machine.home import Home
from peer_agent.protocol.errors import Problem
from peer_agent.publishing.child import run_child
from peer_agent.site.facts import Offer
from tests.agent.program import ROOT, environment

RUN_PROGRAM = "from peer_agent.bundle import main; main()"
NOWHERE = "http://127.0.0.1:9/runs/a/"


def start(home: Path, *lines: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Start the program with no arguments, as a double click does, and type some lines."""
    return subprocess.run(
        [sys.executable, "-c", RUN_PROGRAM],
        env=environment(home) | more,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_it_asks_until_it_gets_a_run_and_waits_at_the_end(tmp_path: Path) -> None:
    done = start(tmp_path, "hello", "http://127.0.0.1:9/", f'manyhands join "{NOWHERE}" --threads 1', "")
    assert re.findall(r"> (E\d+)", done.stdout) == ["E112", "E305"]
    assert "again" not in done.stdout
    assert done.stderr.startswith("E104: ")
    assert done.stdout.endswith("Press Enter to close this window. ")
    assert done.returncode == 1


def test_enter_alone_joins_the_last_run_again(tmp_path: Path) -> None:
    write_status(Home(tmp_path), Status(site="http://127.0.0.1:9", run="a"), time.time())
    done = start(tmp_path, "", "")
    assert f"Press Enter to join {NOWHERE} again" in done.stdout
    assert done.stderr.startswith("E104: ")


def test_an_unexpected_error_is_shown_before_the_window_closes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundle, "last_run", lambda: 1 / 0)
    monkeypatch.setattr("builtins.input", lambda _: print("waits") or "")
    assert bundle.run_in_window() == 1
    said = capsys.readouterr()
    assert "ZeroDivisionError" in said.err
    assert said.out.endswith("waits\n")


def test_without_an_answer_it_ends_quietly(tmp_path: Path) -> None:
    done = start(tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


async def test_child_processes_start_by_the_bundles_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script(tmp_path / "manyhands", f'exec {sys.executable} -c {shlex.quote(RUN_PROGRAM)} "$@"')
    monkeypatch.setenv("PYTHONPATH", ROOT)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(Problem) as raised:
        await run_child(
            ["hub-snapshot", str(tmp_path), "--repository", "no/such/name", "--endpoint", "http://127.0.0.1:9"]
        )
    assert raised.value.fault.code == "E348"


def test_the_agent_starts_no_other_child_of_its_own() -> None:
    """A bundle has no `python -m`, so its program must know each module that the agent starts."""
    rooms = {path for path in (Path(ROOT) / "peer_agent").rglob("*.py") if "site_work" not in path.parts}
    started = [found for path in rooms for found in re.findall(r'"-m", "([\w.]+)"', path.read_text())]
    assert set(started) == {bundle.CHILD[1], "pip"}, "a bundle does not upgrade itself"


def test_other_programs_get_their_own_libraries_back() -> None:
    changed = {"LD_LIBRARY_PATH": "/bundle", "LD_LIBRARY_PATH_ORIG": "/own"}
    bundle.prepare_environment(changed)
    assert changed == {"LD_LIBRARY_PATH": "/own"}
    added = {"LD_LIBRARY_PATH": "/bundle"}
    bundle.prepare_environment(added)
    assert added == {}


def test_certificates_come_along_if_the_system_has_none_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = type("Paths", (), {"cafile": None, "capath": None})
    monkeypatch.setattr("ssl.get_default_verify_paths", nothing)
    found: dict[str, str] = {}
    bundle.prepare_environment(found)
    assert Path(found["SSL_CERT_FILE"]).is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a double click opens a terminal")
def test_without_a_window_it_opens_a_terminal_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    terminal = script(tmp_path / "xdg-terminal-exec", f'echo "$MANYHANDS_WINDOW $@" > {log}')
    screen = {"DISPLAY": ":9", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = start(tmp_path, **screen)
    assert (done.returncode, done.stdout) == (0, "")
    until = time.monotonic() + 20
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert log.read_text() == f"1 {sys.executable}\n"
    assert terminal.exists()
    assert "Manyhands" in start(tmp_path, **screen, MANYHANDS_WINDOW="1").stdout


def test_nothing_is_installed_into_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "pip" not in install_line("torch", again=True)
    assert "pip" not in Offer("9.9", 1, upgrade_pip="pip install x", upgrade_uv="uv tool install x").line(
        "https://a.example"
    )
