"""Where a site that runs on this data folder says it is: for commands beside `serve`."""

import json
from contextlib import suppress
from pathlib import Path

from django.conf import settings


def announced_url() -> str:
    """The public address of the site process on this data folder; empty where none has announced itself."""
    for path in sorted(Path(settings.DATA).glob("serve*.json")):
        with suppress(OSError, ValueError, KeyError):  # it ends as we read
            return str(json.loads(path.read_text())["url"])
    return ""
