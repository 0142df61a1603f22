"""Celery tasks for notices. Rows in the database say what is due, so losing the queue loses no notices."""

from celery import shared_task

from notices.delivery import deliver_due


@shared_task
def deliver() -> None:
    deliver_due()
