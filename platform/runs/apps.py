"""The room `runs` as Django knows it."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    """Runs, their data, log and ledger."""

    name = "runs"
