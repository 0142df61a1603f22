"""The room `notices` as Django knows it."""

from django.apps import AppConfig


class NoticesConfig(AppConfig):
    """Notifications."""

    name = "notices"
