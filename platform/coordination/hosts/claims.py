"""Claims give each run a single host. A host claims a run by a conditional update, then keeps renewing the claim.

Each new claim on a run gets a higher number, its fence (rules 2 and 3). The database's clock decides when a claim
expires, so a host with a wrong clock cannot take a run from another host. A fence is at least the number of seconds
since EPOCH, so that a database restored from a backup issues higher fences than its machines have seen before (rule
16).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from django.db import DatabaseError
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Greatest, Now

from coordination.store import Stale
from coordination.threads import in_thread_of
from runs.models import Head, Run
from runs.states import LIVE

CLAIM = timedelta(seconds=10)
RENEW_S = 2.0
EPOCH = 1_767_225_600  # 1 January 2026, in seconds since 1970
RETRY_S = 1.0  # seconds to wait before retrying a failed database


def unclaimed() -> QuerySet[Head]:
    """Return the heads of live runs that no host has claimed.

    The query avoids a join. With a join, Django would select the rows to update in a subquery. PostgreSQL does not
    re-evaluate a subquery after waiting for a concurrent update, so two hosts could both claim the run.
    """
    free = Q(claim_expires=None) | Q(claim_expires__lt=Now())
    return Head.objects.filter(free, run__in=Run.objects.filter(state__in=LIVE))


def claim(run: Run, owner: str) -> int | None:
    """Claim the run for `owner`, the name of a channel. Return the new fence, or None if another host has the claim."""
    fence = Greatest(F("fence") + 1, Value(int(time.time()) - EPOCH))
    taken = unclaimed().filter(run=run).update(fence=fence, owner=owner, claim_expires=Now() + CLAIM)
    if taken != 1:
        return None
    head = Head.objects.get(run=run)
    return head.fence if head.owner == owner else None


def renew(run: Run, owner: str, fence: int) -> bool:
    """Renew the claim. Return False if another host holds it."""
    mine = Head.objects.filter(run=run, owner=owner, fence=fence)
    return mine.update(claim_expires=Now() + CLAIM) == 1


def release(run: Run, owner: str, fence: int) -> None:
    """Release the claim at once, so that another host need not wait until it expires."""
    Head.objects.filter(run=run, owner=owner, fence=fence).update(claim_expires=None, owner="")


def forget_the_dead() -> None:
    """End all claims at once. Call this only if no other process of the site is running."""
    Head.objects.exclude(claim_expires=None).update(claim_expires=None, owner="")


def is_live(run: Run) -> bool:
    return Run.objects.filter(pk=run.pk, state__in=LIVE).exists()


def hosts_of(run_id: str | None = None) -> dict[str, tuple[str, int]]:
    """Return the channel and fence of each claimed run's host, keyed by run id. With `run_id`, query only that run."""
    held = Head.objects.filter(claim_expires__gt=Now(), run__state__in=LIVE)
    if run_id is not None:
        held = held.filter(run_id=run_id)
    return {head.run_id.hex: (head.owner, head.fence) for head in held}


def live_runs() -> list[Run]:
    return list(Run.objects.filter(head__in=unclaimed()).order_by("created_at"))


# A claim as seen by its host, which renews it alongside all other work and gives it up in time if renewal fails.

log = logging.getLogger(__name__)

CLAIM_S = CLAIM.total_seconds()
# Allows for messages still in transit when the claim expires, and for clocks that run at different speeds.
MARGIN_S = 2.0


def elapsed_s() -> float:
    """Return a monotonic time in seconds. If the system has a clock that also runs during sleep, use that clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Holding:
    """A host's claim on a run.

    The host stops relying on the claim shortly before another host could take over. The claim's lifetime is counted
    from the moment when the host *requested* the last renewal.
    """

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
        self.is_lost = False  # another host holds the claim, or this host gave it up

    def is_held(self) -> bool:
        return not self.is_lost and self.clock() - self.asked_at < CLAIM_S - MARGIN_S

    async def keep(self) -> None:
        """Renew the claim until it is lost. If the database does not answer, retry until the claim expires."""
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
        """While the claim is held, call `write`, and retry if the database fails.

        If `write` raises Stale, treat the claim as lost.
        """
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
        """Release the claim. If the database does not answer, the claim expires on its own."""
        self.is_lost = True
        try:
            await in_thread_of(self.threads, release)(self.run, self.owner, self.fence)
        except DatabaseError:
            log.warning("run %s: its claim runs out by itself", self.run.slug, exc_info=True)


async def hold(
    run: Run, owner: str, threads: ThreadPoolExecutor, clock: Callable[[], float] = elapsed_s
) -> Holding | None:
    """Claim a run. Return None if that fails. `threads` must run only claims, so that nothing else delays renewals."""
    asked_at = clock()
    try:
        fence = await in_thread_of(threads, claim)(run, owner)
    except DatabaseError:
        log.warning("run %s: it could not be claimed", run.slug, exc_info=True)
        return None
    return None if fence is None else Holding(run, owner, fence, asked_at=asked_at, threads=threads, clock=clock)
