"""An owner's limits decide when a machine may work. The first reason to rest is the one shown."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.machine import resting
from peer_agent.machine.home import Home
from peer_agent.machine.resting import (
    FILE,
    MOST_REFUSALS,
    WORDS,
    Month,
    Rest,
    Senses,
    Surroundings,
    has_desktop,
    idle_at_terminals,
    in_words,
    is_within,
    next_start,
    plain_name,
    reason_to_rest,
    running_programs,
)
from peer_agent.protocol.messages import Instructions
from peer_agent.protocol.messages.machine import DAY_MINUTES, Blind, Hours, OwnerLimits, Why

FRIDAY = datetime(2026, 11, 27, 15, 0)  # noqa: DTZ001 (by the clock on the wall)
QUIET = Surroundings(now=FRIDAY)


def wanted(**limits: object) -> Instructions:
    return Instructions(revision=1, limits=OwnerLimits(**limits))  # type: ignore[arg-type]


def test_without_limits_it_works_whatever_goes_on() -> None:
    busy = Surroundings(
        now=FRIDAY, idle_s=0, on_battery=True, programs=frozenset({"steam"}), memory_bytes=10**12, month_bytes=10**15
    )
    assert not reason_to_rest(wanted(), busy)


@pytest.mark.parametrize(
    ("limits", "around", "rest"),
    [
        ({"hours": (Hours(4, 0, 15 * 60),)}, {}, Rest(Why.HOURS, "Friday 00:00")),
        ({"hours": (Hours(4, 15 * 60, 16 * 60),)}, {}, Rest()),
        ({"month_gb": 2}, {"month_bytes": 2 * 10**9}, Rest(Why.TRAFFIC, "2 GB")),
        ({"month_gb": 2}, {"month_bytes": 2 * 10**9 - 1}, Rest()),
        ({"pause_on_battery": True}, {"on_battery": True}, Rest(Why.BATTERY)),
        ({"pause_on_battery": True}, {"on_battery": None}, Rest()),
        ({"pause_on_battery": True}, {"on_battery": False}, Rest()),
        ({"programs": ("Steam.exe",)}, {"programs": frozenset({"steam"})}, Rest(Why.PROGRAM, "Steam.exe")),
        ({"programs": ("steam",)}, {"programs": frozenset({"steamtours"})}, Rest()),
        ({"idle_minutes": 5}, {"idle_s": 299.0}, Rest(Why.IN_USE)),
        ({"idle_minutes": 5}, {"idle_s": 300.0}, Rest()),
        ({"idle_minutes": 5}, {"idle_s": None}, Rest()),
        ({"memory_mb": 2000}, {"memory_bytes": 2 * 10**9 + 1}, Rest(Why.MEMORY, "2.0 GB")),
        ({"memory_mb": 2000}, {"memory_bytes": 2 * 10**9}, Rest()),
    ],
)
def test_each_limit_and_its_bound(limits: dict[str, object], around: dict[str, object], rest: Rest) -> None:
    assert reason_to_rest(wanted(**limits), replace(QUIET, **around)) == rest


def test_a_pause_goes_before_everything() -> None:
    hours = replace(wanted(hours=(Hours(0, 0, 1),)), pause=True)
    assert reason_to_rest(hours, QUIET) == Rest(Why.PAUSED)


def test_after_five_refusals_in_a_row_it_rests() -> None:
    assert not reason_to_rest(wanted(), replace(QUIET, refused=("no",) * (MOST_REFUSALS - 1)))
    rest = reason_to_rest(wanted(), replace(QUIET, refused=(*["no"] * (MOST_REFUSALS - 1), "the root is another")))
    assert rest == Rest(Why.REFUSED, "the root is another")
    assert "the root is another" in in_words(rest)


def test_every_reason_has_words() -> None:
    assert WORDS.keys() == set(Why)
    assert plain_name(" Cyberpunk2077.EXE ") == "cyberpunk2077"


HOURS = st.builds(Hours, st.integers(0, 6), st.integers(0, DAY_MINUTES - 1), st.integers(1, DAY_MINUTES))
MINUTES = st.integers(0, 7 * DAY_MINUTES - 1)
MONDAY = datetime(2026, 11, 23)  # noqa: DTZ001


def minutes_of(hours: Hours) -> set[int]:
    """Return every open minute of a week, counted one by one, for use as an independent reference."""
    length = hours.stop - hours.first if hours.stop > hours.first else hours.stop + DAY_MINUTES - hours.first
    begin = hours.day * DAY_MINUTES + hours.first
    return {(begin + minute) % (7 * DAY_MINUTES) for minute in range(length)}


@given(HOURS, MINUTES)
def test_hours_are_open_as_counted_minute_by_minute(hours: Hours, minute: int) -> None:
    assert is_within(hours, MONDAY + timedelta(minutes=minute)) == (minute in minutes_of(hours))


@given(st.lists(HOURS, min_size=1, max_size=5), MINUTES)
def test_the_next_start_is_the_first_that_comes(schedule: list[Hours], minute: int) -> None:
    now = MONDAY + timedelta(minutes=minute)
    starts = {(hours.day, hours.first) for hours in schedule}
    later = (now + timedelta(minutes=more) for more in range(1, 7 * DAY_MINUTES + 1))
    first = next(then for then in later if (then.weekday(), 60 * then.hour + then.minute) in starts)
    assert next_start(tuple(schedule), now) == f"{first:%A %H:%M}"


def test_hours_follow_the_clock_over_a_change_to_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Berlin on 29 March 2026, 02:00 becomes 03:00. Hours that start at 02:30 are open once the clock shows
    03:00."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        before, after = (datetime.fromtimestamp(1774745999), datetime.fromtimestamp(1774746000))  # noqa: DTZ006
        assert (before.hour, after.hour) == (1, 3)
        night = Hours(6, 150, 300)
        assert not is_within(night, before)
        assert is_within(night, after)
    finally:
        monkeypatch.delenv("TZ")
        os.environ.pop("TZ", None)
        time.tzset()


@contextmanager
def started(folder: Path, name: str) -> Iterator[None]:
    path = shutil.copy(shutil.which("sleep") or "", folder / name)
    with subprocess.Popen([path, "60"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_program_is_seen_while_it_runs(tmp_path: Path) -> None:
    """Linux keeps only fifteen letters of a program's name. This name is longer."""
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
        monkeypatch.setattr(resting, name, never)
    senses = Senses()
    around = senses.look(OwnerLimits(), month_bytes=7, refused=("no",))
    assert (around.month_bytes, around.refused, around.memory_bytes, senses.blind) == (7, ("no",), 0, ())


def test_what_cannot_be_told_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "idle_now", lambda: None)
    monkeypatch.setattr(resting, "on_battery_now", lambda: None)
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
    """A person may be using the screen even if no terminal receives input."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(resting, "idle_at_terminals", lambda _: 1e6)
    monkeypatch.setattr(resting, "_said_by", lambda *_: "")
    monkeypatch.setattr(resting, "has_desktop", lambda: True)
    assert resting.idle_now() is None
    monkeypatch.setattr(resting, "_said_by", lambda *_: "(uint64 61000,)\n")
    assert resting.idle_now() == 61.0
    monkeypatch.setattr(resting, "idle_at_terminals", lambda _: 2.0)
    assert resting.idle_now() == 2.0
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

    monkeypatch.setattr(resting, "idle_now", idle_now)
    senses, limits = Senses(), OwnerLimits(idle_minutes=5)
    first = senses.look(limits, month_bytes=0, refused=()).idle_s
    time.sleep(0.05)
    second = senses.look(limits, month_bytes=0, refused=()).idle_s
    assert asked == [1]
    assert first is not None
    assert second is not None
    assert 0.04 < second - first < 2


class TestMonth:
    def test_continues_after_a_restart_and_resets_each_month(self, tmp_path: Path) -> None:
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
