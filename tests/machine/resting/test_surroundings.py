"""What goes on at this machine, asked of the machine itself."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peer_agent.machine.home import Home
from peer_agent.machine.resting import surroundings
from peer_agent.machine.resting.month import FILE, Month
from peer_agent.machine.resting.surroundings import Senses, has_desktop, idle_at_terminals, running_programs
from peer_agent.protocol.messages.machine import Blind, OwnerLimits


@contextmanager
def started(folder: Path, name: str) -> Iterator[None]:
    """A program of this name that really runs."""
    path = shutil.copy(shutil.which("sleep") or "", folder / name)
    with subprocess.Popen([path, "60"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_program_is_seen_while_it_runs(tmp_path: Path) -> None:
    """Also one whose name is longer than the fifteen letters that Linux keeps of it."""
    name = "A-Very-Long-Game.exe"
    assert "a-very-long-game" not in set(running_programs())
    with started(tmp_path, name):
        time.sleep(0.1)
        assert "a-very-long-game" in set(running_programs())
    assert "a-very-long-game" not in set(running_programs())


def test_only_what_a_limit_is_about_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("asked for nothing")

    for name in ("idle_now", "on_battery_now", "running_programs"):
        monkeypatch.setattr(surroundings, name, never)
    senses = Senses()
    around = senses.look(OwnerLimits(), month_bytes=7, refused=("no",))
    assert (around.month_bytes, around.refused, around.memory_bytes, senses.blind) == (7, ("no",), 0, ())


def test_what_cannot_be_told_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "idle_now", lambda: None)
    monkeypatch.setattr(surroundings, "on_battery_now", lambda: None)
    senses = Senses()
    around = senses.look(OwnerLimits(idle_minutes=5, pause_on_battery=True), month_bytes=0, refused=())
    assert senses.blind == (Blind.IDLE, Blind.BATTERY)
    assert (around.idle_s, around.on_battery) == (None, None)
    senses.look(OwnerLimits(), month_bytes=0, refused=())
    assert not senses.blind


def test_memory_is_that_of_this_process() -> None:
    around = Senses().look(OwnerLimits(memory_mb=1), month_bytes=0, refused=())
    assert 10**7 < around.memory_bytes < 10**11


def test_a_terminal_is_idle_since_something_was_typed(tmp_path: Path) -> None:
    assert idle_at_terminals(tmp_path) is None
    (tmp_path / "pts").mkdir()
    for name, ago_s in (("pts/0", 500), ("pts/1", 90), ("tty1", 4000), ("pts/ptmx", 1)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - ago_s, time.time()))
    idle_s = idle_at_terminals(tmp_path)
    assert idle_s is not None
    assert 89 < idle_s < 100


def test_a_screen_that_cannot_be_asked_is_not_taken_for_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody may sit at it, though nothing is typed at any terminal."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(surroundings, "idle_at_terminals", lambda _: 1e6)
    monkeypatch.setattr(surroundings, "_said_by", lambda *_: "")
    monkeypatch.setattr(surroundings, "has_desktop", lambda: True)
    assert surroundings.idle_now() is None
    monkeypatch.setattr(surroundings, "_said_by", lambda *_: "(uint64 61000,)\n")
    assert surroundings.idle_now() == 61.0
    monkeypatch.setattr(surroundings, "idle_at_terminals", lambda _: 2.0)
    assert surroundings.idle_now() == 2.0
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not has_desktop(tmp_path, tmp_path)
    (tmp_path / "X0").touch()
    assert has_desktop(tmp_path, tmp_path / "none")


def test_a_desktop_is_asked_seldom_and_time_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def idle_now() -> float:
        asked.append(1)
        return 100.0

    monkeypatch.setattr(surroundings, "idle_now", idle_now)
    senses, limits = Senses(), OwnerLimits(idle_minutes=5)
    first = senses.look(limits, month_bytes=0, refused=()).idle_s
    time.sleep(0.05)
    second = senses.look(limits, month_bytes=0, refused=()).idle_s
    assert asked == [1]
    assert first is not None
    assert second is not None
    assert 0.04 < second - first < 2


class TestMonth:
    def test_it_goes_on_after_a_restart_and_begins_anew_with_the_month(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        month = Month(home, since=100, month="2026-11")
        assert month.add(350, month="2026-11") == 250
        month.keep()
        again = Month(home, since=0, month="2026-11")
        assert again.add(50, month="2026-11") == 300
        assert again.add(60, month="2026-12") == 10
        again.keep()
        assert Month(home, since=0, month="2026-12").moved.bytes == 10
        assert Month(home, since=0, month="2027-01").moved.bytes == 0

    @pytest.mark.parametrize("content", [b"", b"{", b'{"month":"2026-11","bytes":-5}', b"\xff"])
    def test_a_file_that_is_none_of_ours_counts_nothing(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / FILE).write_bytes(content)
        assert Month(Home(tmp_path), since=0, month="2026-11").moved.bytes == 0
