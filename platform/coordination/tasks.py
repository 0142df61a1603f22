"""Celery's side of what hosts leave behind."""

from celery import shared_task

from coordination import snapshots


@shared_task
def expire_pending() -> None:
    """Delete states that were handed in and never admitted."""
    snapshots.expire_pending()
