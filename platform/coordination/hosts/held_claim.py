"""A claim as its host holds it: renewed beside all other work, and given up in time where it cannot be renewed."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import DatabaseError

from coordination.hosts import claims
from coordination.threads import in_thread_of
from runs.models import Run

log = logging.getLogger(__name__)

CLAIM_S = claims.CLAIM.total_seconds()
# What a host says may still be on its way when its claim has run out, and two clocks do not go alike.
MARGIN_S = 2.0


def elapsed_s() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the computer sleeps, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Holding:
    """A run under a fence. Held for as long after the last renewal was *asked for* as nobody else can have it."""

    def __init__(
        self,
        run: Run,
        owner: str,
        fence: int,
        *,
        asked_at: float,
        threads: ThreadPoolExecutor,
        clock: Callable[[], float],
    ) -> None:
        self.run, self.owner, self.fence = run, owner, fence
        self.asked_at, self.threads, self.clock = asked_at, threads, clock
        self.is_lost = False  # it is somebody else's, or was given up

    def is_held(self) -> bool:
        """Whether its host may speak and write."""
        return not self.is_lost and self.clock() - self.asked_at < CLAIM_S - MARGIN_S

    async def keep(self) -> None:
        """Renew it until it is lost. A database that does not answer is asked again while there is time."""
        while self.is_held():
            await asyncio.sleep(claims.RENEW_S)
            asked_at = self.clock()
            try:
                is_mine = await in_thread_of(self.threads, claims.renew)(self.run, self.owner, self.fence)
            except DatabaseError:
                log.warning("run %s: its claim could not be renewed", self.run.slug, exc_info=True)
                continue
            if is_mine:
                self.asked_at = asked_at
            else:
                self.is_lost = True

    async def release(self) -> None:
        """Let go; where the database is away, the claim runs out."""
        self.is_lost = True
        try:
            await in_thread_of(self.threads, claims.release)(self.run, self.owner, self.fence)
        except DatabaseError:
            log.warning("run %s: its claim runs out by itself", self.run.slug, exc_info=True)


async def hold(
    run: Run, owner: str, threads: ThreadPoolExecutor, clock: Callable[[], float] = elapsed_s
) -> Holding | None:
    """Claim a run; None where another host has it, or the database is away. `threads` are kept for claims."""
    asked_at = clock()
    try:
        fence = await in_thread_of(threads, claims.claim)(run, owner)
    except DatabaseError:
        log.warning("run %s: it could not be claimed", run.slug, exc_info=True)
        return None
    return None if fence is None else Holding(run, owner, fence, asked_at=asked_at, threads=threads, clock=clock)
