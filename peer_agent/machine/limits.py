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
    """The volunteer's limits on this machine.

    `threads`: CPU threads for torch. `nice`: as in nice(1). `at_once`: samples computed together; 0 means a whole
    micro-batch. `recomputes`: True to save memory by recomputing layers in the backward pass. `reserve_percent`:
    percentage of the upload bandwidth left free. `duty_percent`: percentage of the time in which the agent may compute.
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
    """Return limits with the given values. By default, one CPU thread and part of the uplink are left free."""
    free = max(1, (os.cpu_count() or 2) - 1)
    return Limits(threads or free, reserve_percent=reserve_percent, disk_gb=disk_gb)


def narrowed(limits: Limits, owner: "OwnerLimits") -> Limits:
    """Return the command line's limits, overridden by any that the owner has set on the site."""
    return msgspec.structs.replace(
        limits,
        threads=min(owner.threads, os.cpu_count() or owner.threads) or limits.threads,
        disk_gb=owner.disk_gb or limits.disk_gb,
        duty_percent=owner.duty_percent,
    )


def apply_limits(limits: Limits) -> None:
    """Lower this process's priority, and set torch's environment variables. GPUs are numbered as in `nvidia-smi`."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if limits.compiles:
        # Otherwise, torch keeps one compiler process per core.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(limits.nice)
