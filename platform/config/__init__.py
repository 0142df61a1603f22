"""Settings from the environment, trusted proxies, and the task queue. Every other package builds on this one."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

celery_app = Celery("manyhands")  # also the default app of shared tasks; it finds every package's tasks.py
celery_app.config_from_object("django.conf:settings", namespace="CELERY")
celery_app.autodiscover_tasks()
