"""The Django app `runs`."""

from importlib import import_module

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"

    def ready(self) -> None:
        """Import the tasks, because Celery must know their names in every process that enqueues one."""
        import_module("runs.tasks")
