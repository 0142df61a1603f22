"""`manage.py migrate`: Django's command, without the site's time limit on PostgreSQL statements."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connection


class Command(migrate.Command):
    """Django's `migrate`, without a statement timeout, since altering a large table may exceed the usual limit.

    The lock timeout stays, because every other query would queue behind a blocked migration.
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
