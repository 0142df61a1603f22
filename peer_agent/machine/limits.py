"""What the volunteer allows on this machine."""

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
    """`threads` for torch; `nice` as in nice(1), where the system has it; `at_once`: samples computed at a time.

    `at_once` 0: a whole micro-batch. `recomputes`: layers once more in backward. `compiles`: layers are compiled, as
    far as that can be done. `reserve_percent`: of the uplink, that
    the household keeps. `disk_gb`: of data that are kept to be used again. `duty_percent`: of the time, in which it
    computes.
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
    """All cores but one, and all of the uplink but a part, or what the volunteer says."""
    free = max(1, (os.cpu_count() or 2) - 1)
    return Limits(threads or free, reserve_percent=reserve_percent, disk_gb=disk_gb)


def narrowed(limits: Limits, owner: "OwnerLimits") -> Limits:
    """What the command line allows, with what the owner has set on the site in its place."""
    return msgspec.structs.replace(
        limits,
        threads=min(owner.threads, os.cpu_count() or owner.threads) or limits.threads,
        disk_gb=owner.disk_gb or limits.disk_gb,
        duty_percent=owner.duty_percent,
    )


def apply_limits(limits: Limits) -> None:
    """Step behind everything the machine's owner does; GPUs are counted as their driver's tool counts them."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if limits.compiles:
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else torch keeps a process for each core
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(limits.nice)
