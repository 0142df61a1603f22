"""Settings from the environment, trusted proxies, and Celery. All other packages build on this one."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

celery_app = Celery("manyhands")  # also the default app of shared tasks
celery_app.config_from_object("django.conf:settings", namespace="CELERY")
