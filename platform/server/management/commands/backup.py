"""`manage.py backup FOLDER`: copy the database, keys and files while the site runs."""

import sys
from argparse import ArgumentParser, FileType
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from peer_agent.protocol.errors import Problem
from runs.ledger.totals import in_words
from server.backups import back_up


class Command(BaseCommand):
    """Makes a new backup in a folder and prints its path. On a Problem, exits with status 1."""

    help = "Copy the database, keys and files into a new folder of FOLDER, while the site runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="where backups are kept; best on another disk")
        more = "a custom-format dump of PostgreSQL's, or - for standard input, if pg_dump is not installed here"
        parser.add_argument("--dump", type=FileType("rb"), help=more)
        parser.add_argument("--keep", type=int, default=7, help="how many backups to keep there (default 7)")

    def handle(self, **options: Any) -> None:
        try:
            path, made = back_up(options["folder"], keep=max(1, options["keep"]), dump=options["dump"])
        except Problem as problem:
            print(problem, file=sys.stderr)
            sys.exit(1)
        self.stdout.write(f"Backed up the database and {made.files:,} files ({in_words(made.size)}) in {path}")
