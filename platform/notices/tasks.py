"""Celery tasks for notices. Rows say what is due and are polled, so a lost queue loses nothing."""

from celery import shared_task

from notices.delivery import deliver_due


@shared_task
def deliver() -> None:
    deliver_due()
