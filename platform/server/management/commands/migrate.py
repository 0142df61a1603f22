"""`manage.py migrate`: Django's command, without the time limit that PostgreSQL otherwise puts on statements."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connection


class Command(migrate.Command):
    """Django's command. A change of a large table may take longer than any other statement of a site is allowed to.

    The limit on waiting for locks stays, because everything else would queue behind a change that waits.
    """

    def handle(self, *arguments: Any, **options: Any) -> None:
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 0")
        try:
            super().handle(*arguments, **options)
        finally:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("RESET statement_timeout")
