"""`manage.py migrate`: Django's command, quick on an empty database and without a time limit on statements."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


class Command(migrate.Command):
    """Django's `migrate`, with two differences.

    It creates the tables of an empty SQLite database directly. On PostgreSQL it has no statement timeout, because
    altering a large table can exceed the usual limit. The lock timeout stays, because every other query would queue
    behind a blocked migration.
    """

    def handle(self, *arguments: Any, **options: Any) -> None:
        if connection.vendor == "sqlite" and not options["app_label"] and not connection.introspection.table_names():
            self.verbosity = options["verbosity"]
            self._create_all()
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 0")
        try:
            super().handle(*arguments, **options)
        finally:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("RESET statement_timeout")

    def _create_all(self) -> None:
        """Create the tables of all models, and record every migration as applied.

        This takes a tenth of the time of the migrations, which change only rows and tables that do not exist yet.
        """
        loader = MigrationLoader(connection)
        connection.disable_constraint_checking()
        try:
            with transaction.atomic():
                self.sync_apps(connection, loader.migrated_apps)
                recorder = MigrationRecorder(connection)
                recorder.ensure_schema()
                for migration in loader.disk_migrations:
                    recorder.record_applied(*migration)
        finally:
            connection.enable_constraint_checking()
