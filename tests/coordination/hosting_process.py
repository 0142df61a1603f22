"""A process that only runs `run_hosts`: until it is killed, it hosts every run that has no host."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

if __name__ == "__main__":
    from django import setup
    from django.conf import settings

    setup()
    layers: dict[str, Any] = settings.CHANNEL_LAYERS
    layers["default"]["CONFIG"]["prefix"] = os.environ["LAYER_PREFIX"]

    from coordination.hosts.supervisor import run_hosts
    from runs.parent import leave_with_parent

    leave_with_parent()
    asyncio.run(run_hosts(asyncio.Event()))
