"""The site, with child processes forked from a process that has already loaded torch (`tests/warm`)."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"


def fork_children() -> None:
    from runs import processes
    from tests.warm.client import bootstrap

    if socket := os.environ.get("MANYHANDS_WARM"):
        processes.BOOTSTRAP = bootstrap(socket)


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    fork_children()
    execute_from_command_line(sys.argv)
