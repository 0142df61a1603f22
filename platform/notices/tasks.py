"""Celery's side of notifications. Nothing is lost with the queue: what is due stands in rows, and is looked for."""

from celery import shared_task

from notices.delivery import deliver_due


@shared_task
def deliver() -> None:
    deliver_due()
