"""Wiring only: settings, addresses, the ASGI application, the task queue. Decides nothing about runs."""

from config.celery import app as celery_app  # else a shared task would go to Celery's default broker

__all__ = ["celery_app"]
