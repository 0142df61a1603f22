"""`manage.py migrate`: Django's command, quick on an empty database, and careful while another version is running."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from config.upgrades import pending

WAITING = "{number} changes of the tables wait until version {versions} has stopped.\n"
LOCK = 0x6D68  # PostgreSQL's advisory lock that a process holds while it applies migrations


class Command(migrate.Command):
    """Django's `migrate`, with two differences if no app is named.

    It creates the tables of an empty SQLite database directly. On PostgreSQL, it applies only migrations that are
    compatible with other versions of the site that are still running.
    """

    def handle(self, *arguments: Any, **options: Any) -> None:
        if options["app_label"]:
            super().handle(*arguments, **options)
        elif connection.vendor == "sqlite":
            if not connection.introspection.table_names():
                self.verbosity = options["verbosity"]
                self._create_all()
            super().handle(*arguments, **options)
        else:
            with _alone():
                self._apply_pending(*arguments, **options)

    def _apply_pending(self, *arguments: Any, **options: Any) -> None:
        now, waiting, versions = pending()
        if waiting:
            for app, name in dict(now).items():  # the last migration of each app
                super().handle(*arguments, **{**options, "app_label": app, "migration_name": name})
            self.stdout.write(WAITING.format(number=len(waiting), versions=", ".join(versions)))
        else:
            super().handle(*arguments, **options)

    def _create_all(self) -> None:
        """Create the tables of all models, and record every migration as applied.

        This takes a tenth of the time that the migrations would. It suits only an empty database, which has no rows or
        older tables for them to change.
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


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process is applying migrations, then keep others from doing so during a `with` block.

    The statement timeout is off during the block, because changing a large table takes long. The lock timeout still
    applies, because all other queries would queue behind a blocked migration.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        cursor.execute("RESET lock_timeout")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
            cursor.execute("RESET statement_timeout")
