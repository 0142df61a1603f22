"""The room `accounts` as Django knows it."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """People, machines, tokens."""

    name = "accounts"
