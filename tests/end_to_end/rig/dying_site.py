"""A site that kills itself with SIGKILL between committing a step and sending the message about it.

The site is `manage.py serve` with one function wrapped.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

if __name__ == "__main__":
    from django import setup
    from django.core.management import execute_from_command_line

    setup()
    from coordination import store
    from tests.end_to_end.rig.warm_site import fork_children

    fork_children()

    commit, last = store.commit, int(os.environ["DIE_AFTER_STEP"])

    def commit_and_die(*arguments: Any, **details: Any) -> Any:
        outcome = commit(*arguments, **details)
        if arguments[2].step == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    store.commit = commit_and_die
    execute_from_command_line(sys.argv)
