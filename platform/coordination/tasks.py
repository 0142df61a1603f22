"""Celery tasks that clean up after hosts."""

from celery import shared_task

from coordination import presence, snapshots
from runs.departure import forget_lines


@shared_task
def expire_pending() -> None:
    snapshots.expire_pending()


@shared_task
def forget_name(name: str) -> None:
    """Erase a deleted account's name once more, since hosts may have written the name from memory meanwhile."""
    forget_lines(name)
    presence.forget_plans(name)
