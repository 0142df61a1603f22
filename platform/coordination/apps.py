"""The room's entry in Django."""

from django.apps import AppConfig


class CoordinationConfig(AppConfig):
    """Hosts runs."""

    name = "coordination"
