"""`manage.py restore BACKUP`: restore a backup while the site is stopped."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from peer_agent.protocol.errors import Problem
from server.backups import missing_in_bucket, restore


class Command(BaseCommand):
    """Restores a backup and prints what to expect next. On a Problem, exits with status 1."""

    help = "Restore the database, keys and files from a backup, while the site is stopped."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("backup", type=Path, help="the folder of one backup, which has the file backup.json")
        parser.add_argument("--only-files", action="store_true", help="leave the database to pg_restore")
        parser.add_argument("--replace", action="store_true", help="replace a database with accounts; a copy is kept")

    def handle(self, **options: Any) -> None:
        try:
            made = restore(options["backup"], replaces=options["replace"], only_files=options["only_files"])
            missing = missing_in_bucket(options["backup"])
        except Problem as problem:
            print(problem, file=sys.stderr)
            sys.exit(1)
        self.stdout.write(f"Restored the backup of {made.at}. Start the site as usual.")
        if missing:
            where = "the bucket that MANYHANDS_S3 names" if settings.S3 else "a bucket; set MANYHANDS_S3"
            self.stdout.write(f"{len(missing):,} files that it lists, such as {missing[0]}, are not in {where}.")
        self.stdout.write("Relays give back the steps that runs have made since then; their pages say what is lost.")
