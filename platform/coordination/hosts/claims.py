"""One host per run: claimed by a conditional update, held by renewal, fenced by a number (rules 2 and 3).

Time is the database's: hosts with wrong clocks cannot take a run from one another.
"""

from datetime import timedelta

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from runs.models import Head, Run
from runs.states import LIVE

CLAIM = timedelta(seconds=10)
RENEW_S = 2.0


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
