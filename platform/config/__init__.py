"""Settings from the environment, proxies, the task queue: what every room stands on. Decides nothing about runs."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

celery_app = Celery("manyhands")  # also the default app of shared tasks, which finds every room's tasks.py
celery_app.config_from_object("django.conf:settings", namespace="CELERY")
celery_app.autodiscover_tasks()
