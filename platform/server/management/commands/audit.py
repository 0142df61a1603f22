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

    help = "Check a run's log, ledger and head against one another. The run may be training meanwhile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", help="the run's short name, as in its address")
        parser.add_argument("--full", action="store_true", help="read again what earlier audits found to be right")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        """Print the findings of a run's audit. For an unknown run, print E305."""
        run = Run.objects.filter(slug=options["run"]).first()
        if run is None:
            print(Problem.of("E305", address=options["run"]), file=sys.stderr)
            sys.exit(1)
        found = audit(run, is_full=options["full"])
        self.stdout.write(json.dumps(found, indent=2) if options["json"] else _words(found))
        sys.exit(1 if found["faults"] else 0)


def _words(found: dict[str, Any]) -> str:
    known = found["steps"] - found["read"]
    before = f" ({known} of them audited earlier; --full reads them again)" if known else ""
    totals = "{steps} steps{before}, {committed_samples} samples committed, {ledger_samples} in the ledger"
    snapshots = [f"snapshot of step {row['step']}: {row['state']}" for row in found["snapshots"]]
    return "\n".join([totals.format(**found, before=before), *snapshots, *(found["faults"] or ["No fault found."])])
