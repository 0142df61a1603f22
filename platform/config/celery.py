"""The task queue: `app` finds every room's tasks.py."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("manyhands")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
