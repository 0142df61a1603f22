"""Celery's side of what hosts leave behind."""

from celery import shared_task

from coordination import presence, snapshots
from runs.departure import forget_lines


@shared_task
def expire_pending() -> None:
    snapshots.expire_pending()


@shared_task
def forget_name(name: str) -> None:
    """Somebody has left for good: hosts that had them in memory may have written their name since."""
    forget_lines(name)
    presence.forget_plans(name)
