"""The command as people run it: its output, and its clean-up after every kind of exit. Without root or iproute2, it
says why it cannot run.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulation.kernel import remains
from tests.emulation.kernel.commands import reason_against
from tests.emulation.network import ROOT
from tests.emulation.setups import SETUPS

PATIENCE_S = 60.0


def started(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.emulation", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def shown(process: "subprocess.Popen[str]") -> str:
    """Return everything the process prints until it waits for Enter or ends."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Enter"):
            break
    return "".join(lines)


def is_there(process: "subprocess.Popen[str]") -> bool:
    return bool(remains.named(f"mh{process.pid}-"))


@pytest.mark.parametrize(
    ("ending", "status"),
    [("enter", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["enter", "ctrl-c", "sigterm", "terminal-closed"],
)
def test_a_setup_is_there_until_its_end(ending: str | int, status: int) -> None:
    process = started("--setup", "four", "--scale", "0.5")
    said = shown(process)
    if reason_against():
        refused(process)
        return
    assert "100 │" in said
    assert "fp32: 32.00 s" in said
    assert is_there(process)
    if isinstance(ending, int):
        process.send_signal(ending)
    _, trouble = process.communicate("\n" if ending == "enter" else "", timeout=PATIENCE_S)
    assert (process.returncode, trouble) == (status, "")
    assert not is_there(process)


def refused(process: "subprocess.Popen[str]") -> None:
    _, trouble = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    said = trouble.replace(f"mh{process.pid}-", f"mh{os.getpid()}-")
    assert said.strip() == reason_against()


def test_clean_removes_what_a_killed_one_left_and_no_other() -> None:
    alive, killed = started("--setup", "four"), started("--setup", "four")
    shown(alive), shown(killed)
    killed.kill()
    killed.communicate()
    cleaned = started("--clean")
    said, _ = cleaned.communicate(timeout=PATIENCE_S)
    try:
        if reason_against():
            assert cleaned.returncode == 1
        else:
            assert f"removed mh{killed.pid}-1-trainer-1" in said
            assert not is_there(killed)
            assert is_there(alive)
            assert f"mh{alive.pid}-" not in said
    finally:
        alive.communicate("\n", timeout=PATIENCE_S)


def test_without_iproute2_it_says_what_to_do(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.emulation", "--setup", "homes"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "iproute2" in done.stderr if sys.platform == "linux" else "Linux" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["--setup", "nowhere"], ["--setup", "four", "--scale", "0"]])
def test_what_makes_no_sense_is_refused_with_what_makes_sense(arguments: list[str]) -> None:
    process = started(*arguments)
    _, trouble = process.communicate(timeout=PATIENCE_S)
    if not reason_against() or "--scale" not in arguments:
        assert process.returncode == 2
        assert [name for name in SETUPS if name not in trouble] == []
