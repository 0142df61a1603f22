"""The site's command line. It puts `platform/` first on the import path, so that Django finds the packages there."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "platform"))


def main() -> int:
    """Run a management command and return its exit status. Print a numbered error without a traceback."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    from peer_agent.protocol.errors import Problem

    try:
        execute_from_command_line(sys.argv)
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
