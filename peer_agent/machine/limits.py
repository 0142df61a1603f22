"""What the volunteer allows on this machine."""

import os
import sys

from msgspec import Struct

NICE = 10


class Limits(Struct, frozen=True):
    """`threads` for torch; `nice` as in nice(1), where the system has it; `at_once`: samples computed at a time.

    `at_once` 0: a whole micro-batch.
    """

    threads: int
    nice: int = NICE
    at_once: int = 0


def usual_limits(threads: int | None = None) -> Limits:
    """All cores but one, or what the volunteer says."""
    return Limits(threads or max(1, (os.cpu_count() or 2) - 1))


def apply_limits(limits: Limits) -> None:
    """Step behind everything the machine's owner does."""
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(limits.nice)
