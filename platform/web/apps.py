"""The room `web` as Django knows it."""

from django.apps import AppConfig


class WebConfig(AppConfig):
    """Pages, API, the command `serve`."""

    name = "web"
