"""A normal site, except that its relay and other child processes use the benchmark's clock
(tests/benchmarks/day.py)."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
CLOCK = ("LD_PRELOAD", "FAKETIME_TIMESTAMP_FILE", "FAKETIME_NO_CACHE")

if __name__ == "__main__":
    from django import setup
    from django.core.management import execute_from_command_line

    setup()
    from runs import processes
    from server import relay

    bare = processes.child_environment

    def with_clock() -> dict[str, str]:
        return {**bare(), **{name: os.environ[name] for name in CLOCK}}

    processes.child_environment = relay.child_environment = with_clock  # type: ignore[attr-defined]
    execute_from_command_line(sys.argv)
