"""`manage.py demo`: a full training run with real processes, on real text, over HTTP."""

import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from demo.processes import ROOT, Children
from demo.recipes import RECIPES
from demo.story import Demo
from peer_agent.protocol.errors import Problem
from server.reachability import check_port


class Command(BaseCommand):
    """Starts a site and volunteers that train a small model on this machine."""

    help = "Train a small language model here: a site, a relay and volunteers, each a process of its own."
    requires_system_checks: list[str] = []  # noqa: RUF012 (Django's own way)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--recipe", choices=RECIPES, default="causal_lm", help="default causal_lm")
        parser.add_argument("--peers", type=int, default=3, help="volunteers (default 3)")
        parser.add_argument("--steps", type=int, default=0, help="steps (default 1000, with --exit 40)")
        parser.add_argument("--port", type=int, default=8000, help="of the page; 0: any free one (default 8000)")
        parser.add_argument("--exit", action="store_true", help="end when the model is downloaded")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")

    def handle(self, **options: Any) -> None:
        """Run the demo. On failure, print a numbered error and exit with 1."""
        # SIGINT too: a job that a shell starts with `&` inherits SIGINT as ignored.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        steps = options["steps"] or (40 if options["exit"] else 1000)
        demo = Demo(ROOT / "var" / "demo", options["peers"], steps, options["port"], options["recipe"], _say)
        try:
            check_port("127.0.0.1", options["port"])
            demo.folder.mkdir(parents=True)
            _say(f"Everything is kept in {demo.folder}")
            with Children(demo.folder / "logs") as children:
                result = demo.run(children, dict(os.environ), forever=not options["exit"])
        except Problem as problem:
            print(problem, file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            _say(demo.epilogue())
            sys.exit(130 if options["exit"] else 0)  # the only way that the demo ends without --exit
        if options["json"] is not None:
            options["json"].write_text(json.dumps(result, indent=2) + "\n")
        _say(f"The model is in {result['model_path']}" if result else "")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
