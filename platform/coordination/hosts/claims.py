"""One host per run: claimed by a conditional update, kept by renewal, fenced by a number (rules 2 and 3).

The database's clock decides, so a host with a wrong clock cannot take a run from another.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import DatabaseError
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from coordination.store import Stale
from coordination.threads import in_thread_of
from runs.models import Head, Run
from runs.states import LIVE

CLAIM = timedelta(seconds=10)
RENEW_S = 2.0
RETRY_S = 1.0  # until a database that did not answer or write is tried again


def unclaimed() -> QuerySet[Head]:
    """Return heads of live runs that no living host holds.

    Without a join, on purpose. With one, Django updates by `run_id IN (SELECT … the claim is free)`, which PostgreSQL
    does not evaluate again after waiting for another update, and two hosts would both have claimed.
    """
    free = Q(claim_expires=None) | Q(claim_expires__lt=Now())
    return Head.objects.filter(free, run__in=Run.objects.filter(state__in=LIVE))


def claim(run: Run, owner: str) -> int | None:
    """Claim the run for `owner` (a channel name); return the new fence, or None if another host holds it."""
    taken = unclaimed().filter(run=run).update(fence=F("fence") + 1, owner=owner, claim_expires=Now() + CLAIM)
    if taken != 1:
        return None
    head = Head.objects.get(run=run)
    return head.fence if head.owner == owner else None


def renew(run: Run, owner: str, fence: int) -> bool:
    """Renew the claim; return False if another host has it."""
    mine = Head.objects.filter(run=run, owner=owner, fence=fence)
    return mine.update(claim_expires=Now() + CLAIM) == 1


def release(run: Run, owner: str, fence: int) -> None:
    """Release the claim at once, so that another host need not wait for its expiry."""
    Head.objects.filter(run=run, owner=owner, fence=fence).update(claim_expires=None, owner="")


def forget_the_dead() -> None:
    """End all claims. For a process that knows it is the only one, so that a restart need not wait for expiry."""
    Head.objects.exclude(claim_expires=None).update(claim_expires=None, owner="")


def is_live(run: Run) -> bool:
    return Run.objects.filter(pk=run.pk, state__in=LIVE).exists()


def hosts_of(run_id: str | None = None) -> dict[str, tuple[str, int]]:
    """Return channel and fence of the host of each claimed run, by run id; or only of the given run."""
    held = Head.objects.filter(claim_expires__gt=Now(), run__state__in=LIVE)
    if run_id is not None:
        held = held.filter(run_id=run_id)
    return {head.run_id.hex: (head.owner, head.fence) for head in held}


def live_runs() -> list[Run]:
    return list(Run.objects.filter(head__in=unclaimed()).order_by("created_at"))


# A claim as its host holds it: renewed beside all other work, and given up in time if that fails

log = logging.getLogger(__name__)

CLAIM_S = CLAIM.total_seconds()
# Covers messages still on their way when the claim expires, and clocks of different speed.
MARGIN_S = 2.0


def elapsed_s() -> float:
    """Return seconds of a monotonic clock that, if possible, also runs while the computer sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Holding:
    """A claim on a run. It is held until others may take it, counted from when the last renewal was *requested*."""

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
        self.is_lost = False  # another host has it, or it was given up

    def is_held(self) -> bool:
        return not self.is_lost and self.clock() - self.asked_at < CLAIM_S - MARGIN_S

    async def keep(self) -> None:
        """Renew the claim until it is lost; retry while the database does not answer and time remains."""
        while self.is_held():
            await asyncio.sleep(RENEW_S)
            asked_at = self.clock()
            try:
                is_mine = await in_thread_of(self.threads, renew)(self.run, self.owner, self.fence)
            except DatabaseError:
                log.warning("run %s: its claim could not be renewed", self.run.slug, exc_info=True)
                continue
            if is_mine:
                self.asked_at = asked_at
            else:
                self.is_lost = True

    async def insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Write while the claim is held: retry while the database is away; on Stale, mark the claim lost."""
        while self.is_held():
            try:
                await write()
            except Stale:
                self.is_lost = True
            except DatabaseError:
                log.warning("run %s: the database is away", self.run.slug, exc_info=True)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def release(self) -> None:
        """Release the claim; if the database is away, it expires."""
        self.is_lost = True
        try:
            await in_thread_of(self.threads, release)(self.run, self.owner, self.fence)
        except DatabaseError:
            log.warning("run %s: its claim runs out by itself", self.run.slug, exc_info=True)


async def hold(
    run: Run, owner: str, threads: ThreadPoolExecutor, clock: Callable[[], float] = elapsed_s
) -> Holding | None:
    """Claim a run; return None if another host has it or the database is away. Only claims use `threads`."""
    asked_at = clock()
    try:
        fence = await in_thread_of(threads, claim)(run, owner)
    except DatabaseError:
        log.warning("run %s: it could not be claimed", run.slug, exc_info=True)
        return None
    return None if fence is None else Holding(run, owner, fence, asked_at=asked_at, threads=threads, clock=clock)
