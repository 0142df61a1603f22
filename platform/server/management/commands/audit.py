"""`manage.py audit RUN`: check a run's log, ledger and head against one another."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from peer_agent.protocol.errors import Problem
from runs.ledger.audit import audit
from runs.models import Run


class Command(BaseCommand):
    """A command that prints an audit's findings. It exits with status 1 if there are faults, else with 0."""

    help = "Check a run's log, ledger and head against one another."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", help="the run's short name, as in its address")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        """Print the findings of a run's audit. For an unknown run, print E305."""
        run = Run.objects.filter(slug=options["run"]).first()
        if run is None:
            print(Problem.of("E305", address=options["run"]), file=sys.stderr)
            sys.exit(1)
        found = audit(run)
        self.stdout.write(json.dumps(found, indent=2) if options["json"] else _words(found))
        sys.exit(1 if found["faults"] else 0)


def _words(found: dict[str, Any]) -> str:
    totals = "{steps} steps, {committed_samples} samples committed, {ledger_samples} in the ledger".format(**found)
    snapshots = [f"snapshot of step {row['step']}: {row['state']}" for row in found["snapshots"]]
    return "\n".join([totals, *snapshots, *(found["faults"] or ["No fault found."])])
