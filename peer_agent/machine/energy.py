"""Estimates the electricity used by this process. Only the owner sees the figure, and nothing depends on it."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from peer_agent.machine.hardware import gpu_watts
from peer_agent.machine.language import gettext as _
from peer_agent.machine.language import in_bytes

# Watts at full load, used if the system does not report power. The help page and the FAQ quote these figures.
LAPTOP_W, DESKTOP_W, GPU_W = 30.0, 90.0, 200.0
LOOK_S = 10.0  # seconds between readings; Intel's counters wrap around after a few minutes
HOUR_S = 3600
POWERCAP = Path("/sys/class/powercap")  # where Linux exposes processors' energy counters (RAPL)


class Used(NamedTuple):
    """The electricity in watt-hours and the upload in bytes that a machine has used for a run."""

    energy_wh: float = 0.0
    sent_bytes: int = 0


def used_in_words(used: Used) -> str:
    """Return a sentence about the electricity and upload used for a run so far.

    Return "" if the electricity is too little to mention.
    """
    if used.energy_wh < 1:
        return ""
    words = _("About {energy} and {size} up so far.")
    return words.format(energy=in_watt_hours(used.energy_wh), size=in_bytes(used.sent_bytes))


def in_watt_hours(energy_wh: float) -> str:
    """Return an amount of electricity as text, such as “12 Wh” or “0.4 kWh”."""
    return f"{energy_wh:.0f} Wh" if energy_wh < 100 else f"{energy_wh / 1000:,.1f} kWh"


class Reading(NamedTuple):
    """The counters at one moment. `own_s` and `all_s`: CPU seconds of this process and of all processes.

    `counters`: energy in microjoules, each with the value at which the counter wraps around.
    """

    at: float
    own_s: float
    all_s: float
    counters: tuple[tuple[int, int], ...]


class Meter:
    """Adds up the energy used by this process, in watt-hours."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self.energy_wh = 0.0
        self._powercap, self._process = powercap, psutil.Process()
        self._watts = LAPTOP_W if _has_battery() else DESKTOP_W
        self._last = self._read()

    def look(self, *, works: bool) -> None:
        """Add the energy used since the last call. `works`: False while the agent is paused.

        Call this in a thread, because it may run `nvidia-smi`.
        """
        before, self._last = self._last, self._read()
        joules = processor_joules(before, self._last, self._watts)
        if works and _is_on_gpu():
            watts = gpu_watts()
            joules += (GPU_W if watts is None else watts) * (self._last.at - before.at)
        self.energy_wh += joules / HOUR_S

    def _read(self) -> Reading:
        own, everyone = self._process.cpu_times(), psutil.cpu_times()
        all_s = everyone.user + everyone.system + getattr(everyone, "nice", 0.0)
        return Reading(time.monotonic(), own.user + own.system, all_s, tuple(_counters(self._powercap)))


def processor_joules(before: Reading, now: Reading, watts: float) -> float:
    """Return this process's share of the processor's energy between two readings, by its share of the CPU time.

    If the system does not measure energy, estimate it: a processor with all cores busy draws `watts`.
    """
    own_s = now.own_s - before.own_s
    if not now.counters or len(now.counters) != len(before.counters):
        return watts * own_s / (os.cpu_count() or 1)
    pairs = zip(before.counters, now.counters, strict=True)
    measured = sum((value - earlier) % most for (earlier, _), (value, most) in pairs) / 1e6
    return measured * min(own_s / max(now.all_s - before.all_s, own_s, 1e-9), 1.0)


def _counters(powercap: Path) -> list[tuple[int, int]]:
    """Return the processor packages' energy counters. Most systems let only administrators read them."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for folder in sorted(powercap.glob("intel-rapl:*")):
            if (folder / "name").read_text().startswith("package"):
                value, most = (int((folder / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
                found.append((value, max(most, 1)))
    return found


def _has_battery() -> bool:
    with contextlib.suppress(AttributeError, OSError, RuntimeError):
        return psutil.sensors_battery() is not None
    return False


def _is_on_gpu() -> bool:
    """Return True if this process is computing on a GPU. Does not load torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
