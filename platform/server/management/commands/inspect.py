"""`manage.py inspect FILE…`: show what a run would learn from files. No run, database or running site is needed."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from peer_agent.protocol.recipe import KINDS
from peer_agent.site_work.inspecting import inspect
from peer_agent.site_work.intake.verdict import Pixels, Verdict, encode_verdict, shown

SIGNS = {"note": "·", "question": "?", "refusal": "✗"}
MOST = 12  # most fields, classes and reasons printed


class Command(BaseCommand):
    """Prints the verdict, with JSON as its last line. Exits with status 1 if there is a question or a refusal."""

    help = "say what a run would learn from these files, before anything is uploaded"
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
        parser.add_argument("--recipe", default="", choices=["", *sorted(KINDS)], metavar="NAME")
        parser.add_argument("--field", action="append", default=[], help="the field to read, for each file in order")
        parser.add_argument("--json", action="store_true", help="print only the JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the verdict on the files.

        Raises SystemExit with status 1 if there is a question or a refusal, or 2 if a file is missing.
        """
        missing = [str(path) for path in options["files"] if not path.exists()]
        if missing:
            self.stderr.write(f"There is no file {missing[0]}.")
            raise SystemExit(2)
        verdict = inspect(options["files"], options["recipe"], options["field"])
        if not options["json"]:
            self.stdout.write("\n".join(lines_of(verdict)))
        self.stdout.write(encode_verdict(verdict).decode())
        if not verdict.is_plain:
            raise SystemExit(1)


def lines_of(verdict: Verdict) -> list[str]:
    """Return the verdict as lines for the terminal."""
    lines = [f"{SIGNS[found.severity]} {found.text}" for found in sorted(verdict.findings, key=_urgency)]
    if verdict.format:
        lines += [f"Format       {verdict.format}"]
    lines += [f"Field        {verdict.field}"] if verdict.field else []
    for field in verdict.fields[:MOST]:
        example = shown(field.example, 60)
        lines.append(f"  {field.name}: {field.rows:,} rows, {field.characters:,} characters, “{example}”")
    if verdict.rows:
        lines.append(f"Rows         {verdict.rows:,}, {verdict.repeats:,} of them repeats")
        lines.append(f"Size         {verdict.tokens:,}")
        lines.append(f"Held out     {100 * verdict.heldout_overlap:.1f}% of it also occurs in the training part")
    for reason, count in [*verdict.left_out.items()][:MOST]:
        lines.append(f"Left out     {count:,} {reason}, as {'; '.join(verdict.examples.get(reason, [])[:1])}")
    for name, count in [*verdict.classes.items()][:MOST]:
        lines.append(f"Class        {name}: {count:,}")
    for piece in verdict.pieces[:MOST]:
        if isinstance(piece, Pixels):
            lines.append(f"Pixels       {piece.name}: mean {piece.mean}, deviation {piece.deviation}")
        else:
            lines.append(f"“{piece}”")
    return lines


def _urgency(found: Any) -> int:
    return ("refusal", "question", "note").index(found.severity)
