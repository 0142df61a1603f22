"""What figures of this machine and its links mean: the numbered trouble that each of them is, or none."""

from collections.abc import Collection
from pathlib import Path

from peer_agent.machine.sizes import in_bytes
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S
from peer_agent.protocol.errors import Fault

LEAST_DISK, GOOD_DISK = 200 * 10**6, 2 * 10**9
LEAST_MEMORY, GOOD_MEMORY = 500 * 10**6, 2 * 10**9
CLOCK_WARN_S = 60


def of_memory(free: int) -> Fault | None:
    """E120 or E137 where few bytes of memory are free."""
    if free < LEAST_MEMORY:
        return Fault.of("E120", free=in_bytes(free), needed=in_bytes(LEAST_MEMORY))
    return Fault.of("E137", free=in_bytes(free)) if free < GOOD_MEMORY else None


def of_disk(free: int, folder: Path) -> Fault | None:
    """E121 or E138 where few bytes are free on the disk of `folder`."""
    if free < LEAST_DISK:
        return Fault.of("E121", free=in_bytes(free), path=folder, needed=in_bytes(LEAST_DISK))
    return Fault.of("E138", free=in_bytes(free), path=folder) if free < GOOD_DISK else None


def of_clock(offset_s: float) -> Fault | None:
    """E204 or E139 where the site's clock is so many seconds ahead of this one, or behind it."""
    apart_s = abs(offset_s)
    if apart_s > CLOCK_TOLERANCE_S:
        return Fault.of("E204", minutes=round(apart_s / 60))
    return Fault.of("E139", seconds=round(apart_s)) if apart_s > CLOCK_WARN_S else None


def of_disk_in_use(free: int, folder: Path) -> Fault | None:
    """E121 alone: what runs already has seen that it fits."""
    return of_disk(free, folder) if free < LEAST_DISK else None


def of_relays(missing: Collection[str], answering: Collection[str]) -> Fault | None:
    """E135 where no relay of a run answers, E136 where some do not. Both lists are addresses."""
    if not missing:
        return None
    return Fault.of("E136" if answering else "E135", relays=", ".join(sorted(missing)))


def not_reached(fault: Fault) -> Fault:
    """E134, for what came of an attempt to reach the site."""
    return Fault.of("E134", reason=fault.cause.rstrip("."))
