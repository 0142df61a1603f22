"""The room `runs` as Django knows it."""

from importlib import import_module

from django.apps import AppConfig


class RunsConfig(AppConfig):
    """Runs, their data, log and ledger."""

    name = "runs"

    def ready(self) -> None:
        """Tasks are known by name wherever they are enqueued."""
        import_module("runs.tasks")
