"""Jobs that clean up after hosts."""

from django.utils import timezone

from coordination import presence, snapshots
from jobs.models import Job
from jobs.queue import Kind
from jobs.runner import Later, Outcome, does
from runs.departure import forget_lines


@does(Kind.EXPIRE_PENDING)
def expire_pending(_: Job) -> Outcome:
    """Delete expired pending snapshots, and schedule this job again for when the next one expires."""
    snapshots.expire_pending()
    first = snapshots.next_expiry()
    return Later(max((first - timezone.now()).total_seconds() + 1, 0.0)) if first is not None else None


@does(Kind.FORGET_NAME)
def forget_name(job: Job) -> None:
    """Erase a deleted account's name once more, since a host may have written it again from memory."""
    forget_lines(job.key)
    presence.forget_plans(job.key)
