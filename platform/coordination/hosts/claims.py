"""One host per run: claimed by a conditional update, held by renewal, fenced by a number (rules 2 and 3).

Time is the database's: hosts with wrong clocks cannot take a run from one another.
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
RETRY_S = 1.0  # before a database that did not answer, or wrote nothing, is asked again


def unclaimed() -> QuerySet[Head]:
    """Heads of live runs that no living host holds.

    A join would make Django update by `run_id IN (SELECT … the claim is free)`, and PostgreSQL does not ask such a
    subquery again after waiting for another's update: two hosts would both have claimed. So: no join.
    """
    free = Q(claim_expires=None) | Q(claim_expires__lt=Now())
    return Head.objects.filter(free, run__in=Run.objects.filter(state__in=LIVE))


def claim(run: Run, owner: str) -> int | None:
    """Take the run for `owner` (a channel name); the new fence, or None where another host holds it."""
    taken = unclaimed().filter(run=run).update(fence=F("fence") + 1, owner=owner, claim_expires=Now() + CLAIM)
    if taken != 1:
        return None
    head = Head.objects.get(run=run)
    return head.fence if head.owner == owner else None


def renew(run: Run, owner: str, fence: int) -> bool:
    """Hold the claim for another while. False: it is somebody else's now."""
    mine = Head.objects.filter(run=run, owner=owner, fence=fence)
    return mine.update(claim_expires=Now() + CLAIM) == 1


def release(run: Run, owner: str, fence: int) -> None:
    """Let go at once, so that another host need not wait for the expiry."""
    Head.objects.filter(run=run, owner=owner, fence=fence).update(claim_expires=None, owner="")


def forget_the_dead() -> None:
    """End all claims: for a process that knows that it is the only one, so that a restart need not wait for expiry."""
    Head.objects.exclude(claim_expires=None).update(claim_expires=None, owner="")


def is_live(run: Run) -> bool:
    """Whether the run is one that a host is to drive."""
    return Run.objects.filter(pk=run.pk, state__in=LIVE).exists()


def hosts_of(run_id: str | None = None) -> dict[str, tuple[str, int]]:
    """Channel and fence of the host of each claimed run, by run id; of one run where it is given."""
    held = Head.objects.filter(claim_expires__gt=Now(), run__state__in=LIVE)
    if run_id is not None:
        held = held.filter(run_id=run_id)
    return {head.run_id.hex: (head.owner, head.fence) for head in held}


def live_runs() -> list[Run]:
    """Live runs whose claim is free."""
    return list(Run.objects.filter(head__in=unclaimed()).order_by("created_at"))


# A claim as its host holds it: renewed beside all other work, and given up in time where it cannot be renewed

log = logging.getLogger(__name__)

CLAIM_S = CLAIM.total_seconds()
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
        return not self.is_lost and self.clock() - self.asked_at < CLAIM_S - MARGIN_S

    async def keep(self) -> None:
        """Renew it until it is lost. A database that does not answer is asked again while there is time."""
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
        """Write as long as the run is held: ask a database that is away again, and give the run up if it is stale."""
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
        """Let go; where the database is away, the claim runs out."""
        self.is_lost = True
        try:
            await in_thread_of(self.threads, release)(self.run, self.owner, self.fence)
        except DatabaseError:
            log.warning("run %s: its claim runs out by itself", self.run.slug, exc_info=True)


async def hold(
    run: Run, owner: str, threads: ThreadPoolExecutor, clock: Callable[[], float] = elapsed_s
) -> Holding | None:
    """Claim a run; None where another host has it, or the database is away. `threads` are kept for claims."""
    asked_at = clock()
    try:
        fence = await in_thread_of(threads, claim)(run, owner)
    except DatabaseError:
        log.warning("run %s: it could not be claimed", run.slug, exc_info=True)
        return None
    return None if fence is None else Holding(run, owner, fence, asked_at=asked_at, threads=threads, clock=clock)
