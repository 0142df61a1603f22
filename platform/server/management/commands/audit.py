"""`manage.py audit RUN`: check a run's log, ledger and head against one another."""

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from peer_agent.protocol.errors import Problem
from runs.ledger.audit import audit
from runs.models import Run
from runs.snapshots.replay import replay_all


class Command(BaseCommand):
    """Prints an audit's findings. Exits with status 1 if there are faults, otherwise with 0."""

    help = "Check a run's log, ledger and head against one another. The run may keep training."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", help="the run's short name, as in its address")
        parser.add_argument("--full", action="store_true", help="read again what earlier audits found to be right")
        more = "also replay the log, from the earliest state that it reaches, and compare the newest checked snapshot"
        parser.add_argument("--replay", action="store_true", help=more)
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        """Print the findings of a run's audit, or E305 if there is no such run."""
        run = Run.objects.filter(slug=options["run"]).first()
        if run is None:
            print(Problem.of("E305", address=options["run"]), file=sys.stderr)
            sys.exit(1)
        found = audit(run, is_full=options["full"])
        if options["replay"]:
            found |= replay_all(run)
            found["faults"] += [found["replay_fault"]] if found["replay_fault"] else []
        self.stdout.write(json.dumps(found, indent=2) if options["json"] else _words(found))
        sys.exit(1 if found["faults"] else 0)


def _words(found: dict[str, Any]) -> str:
    known = found["steps"] - found["read"]
    before = f" ({known} of them audited earlier; --full reads them again)" if known else ""
    totals = "{steps} steps{before}, {committed_samples} samples committed, {ledger_samples} in the ledger"
    lines = [totals.format(**found, before=before)]
    if found["lost_samples"]:
        lines.append(f"{found['lost_samples']} samples of steps that a restore lost; they keep their credit")
    if found["unknown_samples"]:
        lines.append(f"{found['unknown_samples']} samples of machines that this database does not know")
    if found["checked_samples"]:
        lines.append(f"{found['checked_samples']} samples checked by other people's machines")
    late = "{samples} samples of machine {machine:.8} of {person} are long overdue for a check"
    lines += [late.format(**each) for each in found["overdue"]]
    lines += [f"snapshot of step {row['step']}: {row['state']}" for row in found["snapshots"]]
    if found.get("replayed_to"):
        lines.append(f"replayed from step {found['replayed_from']} to step {found['replayed_to']}: the same state")
    return "\n".join([*lines, *(found["faults"] or ["No fault found."])])
