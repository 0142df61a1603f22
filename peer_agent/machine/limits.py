"""The volunteer's limits on this machine."""

import os
import sys
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

if TYPE_CHECKING:
    from peer_agent.protocol.messages.machine import OwnerLimits

NICE = 10
RESERVE_PERCENT = 20
DISK_GB, GIGABYTE = 20, 10**9


class Limits(Struct, frozen=True):
    """Limits on one machine. `threads` is for torch; `nice` is that of nice(1), if the system has it.

    `at_once`: samples computed at a time; 0: a whole micro-batch. `recomputes`: recompute layers in backward.
    `compiles`: compile layers if possible. `reserve_percent`: part of the uplink left to the household. `disk_gb`:
    cached data. `duty_percent`: part of the time spent computing.
    """

    threads: int
    nice: int = NICE
    at_once: int = 0
    recomputes: bool = False
    compiles: bool = False
    reserve_percent: int = RESERVE_PERCENT
    disk_gb: int = DISK_GB
    duty_percent: int = 100


def usual_limits(threads: int | None = None, reserve_percent: int = RESERVE_PERCENT, disk_gb: int = DISK_GB) -> Limits:
    """Return the volunteer's values, or the defaults: all cores but one, and most of the uplink."""
    free = max(1, (os.cpu_count() or 2) - 1)
    return Limits(threads or free, reserve_percent=reserve_percent, disk_gb=disk_gb)


def narrowed(limits: Limits, owner: "OwnerLimits") -> Limits:
    """Return the command line's limits, overridden by the owner's settings on the site."""
    return msgspec.structs.replace(
        limits,
        threads=min(owner.threads, os.cpu_count() or owner.threads) or limits.threads,
        disk_gb=owner.disk_gb or limits.disk_gb,
        duty_percent=owner.duty_percent,
    )


def apply_limits(limits: Limits) -> None:
    """Lower this process's priority. GPUs are numbered like in their driver's tool."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if limits.compiles:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else torch keeps a process per core
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(limits.nice)
