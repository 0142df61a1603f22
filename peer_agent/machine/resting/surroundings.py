"""What goes on at this machine: who uses it, what runs, what feeds it. Asks only for what a limit is about."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil

from peer_agent.machine.resting.reasons import Surroundings, plain_name
from peer_agent.protocol.messages.machine import Blind, OwnerLimits

IDLE_LOOK_S = 5.0  # between questions to the desktop, each of which starts a program
ASK_S = 2.0  # for its answer
MONITORS = (  # how desktops are asked for how long nobody has used them, in milliseconds
    (
        "gdbus",
        "org.gnome.Mutter.IdleMonitor",
        "/org/gnome/Mutter/IdleMonitor/Core",
        "org.gnome.Mutter.IdleMonitor.GetIdletime",
    ),
    ("gdbus", "org.freedesktop.ScreenSaver", "/ScreenSaver", "org.freedesktop.ScreenSaver.GetSessionIdleTime"),
)


class Senses:
    """Looks about once a second, from a thread. What it cannot tell it names in `blind`."""

    def __init__(self) -> None:
        self.blind: tuple[Blind, ...] = ()
        self._process = psutil.Process()
        self._idle: tuple[float, float | None] | None = None  # when it was asked for, and what came

    def look(self, limits: OwnerLimits, *, month_bytes: int, refused: tuple[str, ...]) -> Surroundings:
        """As it is now."""
        idle_s = self._idle_s() if limits.idle_minutes else None
        on_battery = on_battery_now() if limits.pause_on_battery else None
        blind = [Blind.IDLE] if limits.idle_minutes and idle_s is None else []
        blind += [Blind.BATTERY] if limits.pause_on_battery and on_battery is None else []
        self.blind = tuple(blind)
        return Surroundings(
            now=datetime.now(),  # noqa: DTZ005 (hours are by the clock on this machine's wall)
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
    """Names of all processes that this one may see, but its own."""
    for process in psutil.process_iter(["name"]):
        if process.pid != os.getpid() and (name := process.info["name"]):
            yield plain_name(name)


def on_battery_now() -> bool | None:
    """A machine without a battery is on none; None where the system does not say."""
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError):
        return None
    return battery is not None and battery.power_plugged is False


def idle_now() -> float | None:
    """Seconds since somebody used this machine; None where it cannot tell."""
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
    """Whether a screen is in use here, this process's or somebody else's."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return any(sockets.glob("X*")) or any(runtime.glob("*/wayland-*"))


def idle_at_terminals(devices: Path) -> float | None:
    """Seconds since something was typed at a terminal; None where there are none."""
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
    """Milliseconds since the start, of 32 bits, which begin anew after 49 days."""
    windows = getattr(ctypes, "windll", None)
    last = _LastInput(size=ctypes.sizeof(_LastInput))
    if windows is None or not windows.user32.GetLastInputInfo(ctypes.byref(last)):
        return None
    return float((windows.kernel32.GetTickCount() - last.at_ms) % 2**32) / 1000
