"""Celery tasks for what hosts leave behind."""

from celery import shared_task

from coordination import presence, snapshots
from runs.departure import forget_lines


@shared_task
def expire_pending() -> None:
    snapshots.expire_pending()


@shared_task
def forget_name(name: str) -> None:
    """Erase a deleted account's name again, which hosts may have written from memory since."""
    forget_lines(name)
    presence.forget_plans(name)
