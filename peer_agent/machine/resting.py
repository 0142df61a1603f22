"""Decides whether this machine may work now, based on its owner's instructions and the machine's state."""

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext_noop, in_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.messages.machine import Blind, Hours, Instructions, OwnerLimits, Why

MEGABYTE, GIGABYTE = 10**6, 10**9
MOST_REFUSALS = 5  # after this many refusals in a row, the machine pauses until its owner acts
WEEK_DAYS = 7
DETAIL = 200  # in characters


class Surroundings(Struct, frozen=True, kw_only=True):
    """Observations of this machine. None means unknown.

    `now`: local time without a time zone. `refused`: the reasons for which other machines refused its latest
    contributions, in a row.
    """

    now: datetime
    idle_s: float | None = None
    on_battery: bool | None = None
    programs: frozenset[str] = frozenset()
    memory_bytes: int = 0
    month_bytes: int = 0
    refused: tuple[str, ...] = ()


class Rest(Struct, frozen=True):
    """The reason why this machine is paused, with a `detail`. A Rest is falsy if the machine may work."""

    why: Why = Why.WORKS
    detail: str = ""

    def __bool__(self) -> bool:
        return self.why is not Why.WORKS


# Pauses for these reasons last until the owner acts
UNTIL_TOLD = frozenset({Why.REFUSED, Why.MEMORY})

WORDS = {
    Why.WORKS: gettext_noop("Working."),
    Why.PAUSED: gettext_noop("Paused by you."),
    Why.REFUSED: gettext_noop("Its last contributions were refused: {detail}"),
    Why.HOURS: gettext_noop("Outside its hours. Next: {detail}."),
    Why.TRAFFIC: gettext_noop("Monthly limit of {detail} reached."),
    Why.BATTERY: gettext_noop("Running on battery."),
    Why.PROGRAM: gettext_noop("{detail} is running."),
    Why.IN_USE: gettext_noop("Someone is using it."),
    Why.MEMORY: gettext_noop("It used {detail} of memory, more than you allow."),
}
PAUSED_UNTIL = gettext_noop("Paused until {detail}.")
DAYS = (
    *(gettext_noop("Monday"), gettext_noop("Tuesday"), gettext_noop("Wednesday"), gettext_noop("Thursday")),
    *(gettext_noop("Friday"), gettext_noop("Saturday"), gettext_noop("Sunday")),
)
WORDS_OF_BLIND = {
    Blind.IDLE: "This machine cannot tell whether someone is using it, so this limit has no effect.",
    Blind.BATTERY: "This machine cannot tell whether it runs on battery, so this limit has no effect.",
}


def in_words(rest: Rest, translated: Callable[[str], str] = str) -> str:
    """Return a sentence telling the owner why the machine is paused. `translated` translates it."""
    day, _, time = rest.detail.partition(" ")
    detail = f"{translated(day)} {time}" if rest.why is Why.HOURS and day in DAYS else rest.detail
    words = PAUSED_UNTIL if rest.why is Why.PAUSED and detail else WORDS[rest.why]
    return translated(words).format(detail=detail)


def reason_to_rest(wanted: Instructions, around: Surroundings) -> Rest:
    """Return the first reason to pause that applies. A pause requested by the owner precedes anything measured."""
    return next(_reasons(wanted, around), Rest())


def _reasons(wanted: Instructions, around: Surroundings) -> Iterator[Rest]:
    limits = wanted.limits
    if wanted.pause:
        yield Rest(Why.PAUSED, in_local_time(wanted.pause_until) if wanted.pause_until else "")
    if len(around.refused) >= MOST_REFUSALS:
        yield Rest(Why.REFUSED, around.refused[-1][:DETAIL])
    if limits.hours and not any(is_within(hours, around.now) for hours in limits.hours):
        yield Rest(Why.HOURS, next_start(limits.hours, around.now))
    if limits.month_gb and around.month_bytes >= limits.month_gb * GIGABYTE:
        yield Rest(Why.TRAFFIC, f"{limits.month_gb:,} GB")
    if limits.pause_on_battery and around.on_battery:
        yield Rest(Why.BATTERY)
    yield from _of_people(limits, around)
    if limits.memory_mb and around.memory_bytes > limits.memory_mb * MEGABYTE:
        yield Rest(Why.MEMORY, in_bytes(around.memory_bytes))


def in_local_time(at: int) -> str:
    """Return the time of day in this machine's time zone. `at`: UTC seconds."""
    return f"{datetime.fromtimestamp(at):%H:%M}"  # noqa: DTZ006 (the local zone is the owner's)


def _of_people(limits: OwnerLimits, around: Surroundings) -> Iterator[Rest]:
    running = next((name for name in limits.programs if plain_name(name) in around.programs), None)
    if running is not None:
        yield Rest(Why.PROGRAM, running)
    if limits.idle_minutes and around.idle_s is not None and around.idle_s < 60 * limits.idle_minutes:
        yield Rest(Why.IN_USE)


def plain_name(program: str) -> str:
    """Return a program's name in lower case, without Windows' `.exe` suffix."""
    return program.strip().casefold().removesuffix(".exe")


def is_within(hours: Hours, now: datetime) -> bool:
    """Return True if `now` is within these weekly hours. Both are in local time, including daylight saving time."""
    minute, day = 60 * now.hour + now.minute, now.weekday()
    if hours.first < hours.stop:
        return day == hours.day and hours.first <= minute < hours.stop
    is_next_day = day == (hours.day + 1) % WEEK_DAYS
    return (day == hours.day and minute >= hours.first) or (is_next_day and minute < hours.stop)


def next_start(schedule: tuple[Hours, ...], now: datetime) -> str:
    """Return the local day and time when the next of these weekly hours begins."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    starts = [
        midnight + timedelta(days=(hours.day - now.weekday()) % WEEK_DAYS + week, minutes=hours.first)
        for hours in schedule
        for week in (0, WEEK_DAYS)
    ]
    start = min(start for start in starts if start > now)
    return f"{DAYS[start.weekday()]} {start:%H:%M}"


IDLE_LOOK_S = 5.0  # seconds between queries to the desktop; each query starts a program
ASK_S = 2.0  # how long to wait for a query's answer
MONITORS = (  # commands that query a desktop's idle time in milliseconds
    (
        "gdbus",
        "org.gnome.Mutter.IdleMonitor",
        "/org/gnome/Mutter/IdleMonitor/Core",
        "org.gnome.Mutter.IdleMonitor.GetIdletime",
    ),
    ("gdbus", "org.freedesktop.ScreenSaver", "/ScreenSaver", "org.freedesktop.ScreenSaver.GetSessionIdleTime"),
)


class Senses:
    """Observes as much of this machine as the owner's limits require.

    `blind`: the observations that these limits need but this machine cannot make.
    """

    def __init__(self) -> None:
        self.blind: tuple[Blind, ...] = ()
        self._process = psutil.Process()
        self._idle: tuple[float, float | None] | None = None  # time and result of the last query

    def look(self, limits: OwnerLimits, *, month_bytes: int, refused: tuple[str, ...]) -> Surroundings:
        idle_s = self._idle_s() if limits.idle_minutes else None
        on_battery = on_battery_now() if limits.pause_on_battery else None
        blind = [Blind.IDLE] if limits.idle_minutes and idle_s is None else []
        blind += [Blind.BATTERY] if limits.pause_on_battery and on_battery is None else []
        self.blind = tuple(blind)
        return Surroundings(
            now=datetime.now(),  # noqa: DTZ005 (the hours are in local time)
            idle_s=idle_s,
            on_battery=on_battery,
            programs=frozenset(running_programs()) if limits.programs else frozenset(),
            memory_bytes=self._process.memory_info().rss if limits.memory_mb else 0,
            month_bytes=month_bytes,
            refused=refused,
        )

    def _idle_s(self) -> float | None:
        now = time.monotonic()
        if self._idle is None or now - self._idle[0] >= IDLE_LOOK_S:
            self._idle = now, idle_now()
        asked_at, idle_s = self._idle
        return None if idle_s is None else idle_s + now - asked_at


def running_programs() -> Iterator[str]:
    """Yield the names of the running processes that this process can see, except its own."""
    for process in psutil.process_iter(["name"]):
        if process.pid != os.getpid() and (name := process.info["name"]):
            yield plain_name(name)


def on_battery_now() -> bool | None:
    """Return True if this machine is running on battery power, or None if unknown."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):
        return None
    return battery is not None and battery.power_plugged is False


def idle_now() -> float | None:
    """Return the seconds since a person last used this machine, or None if unknown."""
    if sys.platform == "win32":
        return _idle_on_windows()
    if sys.platform == "darwin":
        return _idle_on_macos()
    at_terminals = idle_at_terminals(Path("/dev"))
    if not has_desktop():
        return at_terminals
    at_desktop = _idle_at_desktop()
    known = [idle_s for idle_s in (at_desktop, at_terminals) if idle_s is not None]
    return None if at_desktop is None else min(known)


def has_desktop(sockets: Path = Path("/tmp/.X11-unix"), runtime: Path = Path("/run/user")) -> bool:  # noqa: S108
    """Return True if any user of this machine has a graphical desktop open."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return any(sockets.glob("X*")) or any(runtime.glob("*/wayland-*"))


def idle_at_terminals(devices: Path) -> float | None:
    """Return the seconds since the last input at any terminal, or None if there are no terminals."""
    newest = None
    for path in [*devices.glob("pts/[0-9]*"), *devices.glob("tty[0-9]*")]:
        try:
            typed_at = path.stat().st_atime
        except OSError:
            continue
        newest = typed_at if newest is None else max(newest, typed_at)
    return None if newest is None else max(time.time() - newest, 0.0)


def _idle_at_desktop() -> float | None:
    for tool, name, place, method in MONITORS:
        said = _said_by(tool, "call", "--session", "--dest", name, "--object-path", place, "--method", method)
        if (found := re.search(r"uint(?:32|64) (\d+)", said)) is not None:
            return int(found[1]) / 1000
    said = _said_by("xprintidle").strip()
    return int(said) / 1000 if said.isascii() and said.isdigit() else None


def _idle_on_macos() -> float | None:
    found = re.search(r'"HIDIdleTime" = (\d+)', _said_by("ioreg", "-c", "IOHIDSystem", "-d", "4"))
    return int(found[1]) / 1e9 if found is not None else None


def _said_by(tool: str, *arguments: str) -> str:
    path = shutil.which(tool)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("at_ms", ctypes.c_uint32))


def _idle_on_windows() -> float | None:
    """Return the idle time in seconds. Windows' counters have 32 bits and wrap around after 49 days."""
    windows = getattr(ctypes, "windll", None)
    last = _LastInput(size=ctypes.sizeof(_LastInput))
    if windows is None or not windows.user32.GetLastInputInfo(ctypes.byref(last)):
        return None
    return float((windows.kernel32.GetTickCount() - last.at_ms) % 2**32) / 1000


FILE = "traffic.json"
KEEP_S = 30.0  # seconds between writes; a crash loses at most this much


class Moved(Struct, frozen=True):
    """The number of bytes sent and received in one month of local time."""

    month: str
    bytes: int


class Month:
    """This machine's traffic in the current month, across all runs, stored in a small file in the home."""

    def __init__(self, home: Home, *, since: int, month: str = "") -> None:
        """Start counting traffic. `since`: bytes that this process has already sent and received."""
        self.home, self._seen = home, since
        self._kept_at = time.monotonic()
        self.moved = self._read(month or this_month())

    def _read(self, month: str) -> Moved:
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            moved = msgspec.json.decode((self.home.folder / FILE).read_bytes(), type=Moved)
            if moved.month == month and moved.bytes >= 0:
                return moved
        return Moved(month, 0)

    def add(self, total: int, *, month: str = "") -> int:
        """Record that this process has sent and received `total` bytes since it began.

        Return this machine's total for the month.
        """
        month = month or this_month()
        more, self._seen = max(total - self._seen, 0), total
        before = self.moved.bytes if self.moved.month == month else 0
        self.moved = Moved(month, before + more)
        if time.monotonic() - self._kept_at >= KEEP_S:
            self.keep()
        return self.moved.bytes

    def keep(self) -> None:
        """Write the traffic file. Ignore disk errors, which other parts of the agent report."""
        self._kept_at = time.monotonic()
        with contextlib.suppress(Problem):
            self.home.write(FILE, msgspec.json.encode(self.moved))


def this_month() -> str:
    return time.strftime("%Y-%m")
