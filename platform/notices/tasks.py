"""Celery tasks for notices. Rows in the database say what is due, so a lost queue loses no notice."""

from celery import shared_task

from notices.delivery import deliver_due


@shared_task
def deliver() -> None:
    deliver_due()
