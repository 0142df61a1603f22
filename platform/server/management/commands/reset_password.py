"""`manage.py reset_password NAME`: print a link for someone who has forgotten their password."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from accounts.deactivation import reset_path
from server.lock import announced_url


class Command(BaseCommand):
    """Prints a link for setting a new password. The link logs the person in, so it must be shared privately."""

    help = "Print a one-time link with which a person sets a new password."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the person's name on this site")

    def handle(self, **options: Any) -> None:
        """Print a link for setting a new password.

        Raises Problem E331 if there is no account with this name, or E332 if the account is closed.
        """
        site = announced_url() or settings.PUBLIC_URL
        path = reset_path(username=options["name"])
        self.stdout.write(f"{site}{path}")
        self.stdout.write("It works once, within a day. Give it to nobody else: it logs in.")
