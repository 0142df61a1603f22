"""When a machine may work: what its owner set against what goes on, first reason first."""

import os
import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from peer_agent.machine.resting.reasons import (
    MOST_REFUSALS,
    WORDS,
    Rest,
    Surroundings,
    in_words,
    is_within,
    next_start,
    plain_name,
    reason_to_rest,
)
from peer_agent.protocol.messages import Instructions
from peer_agent.protocol.messages.machine import DAY_MINUTES, Hours, OwnerLimits, Why

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
    """Told otherwise: every minute of a week in which they are open, counted one by one."""
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
    """In Berlin on 29 March 2026 02:00 is 03:00: what was to begin at 02:30 is open when the clock shows 03:00."""
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
