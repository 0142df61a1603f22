"""The HTTP server of a site with no pages: `python -m tests.benchmarks.rig.front FOLDER`. It prints its port, and
passes connections for /relay/ to the relay whose socket is in the folder."""

import asyncio
import os
import socket
import sys
from pathlib import Path

from tests.benchmarks.rig.processes import ROOT, leave_with_parent


async def no_pages(*_: object) -> None:
    """An ASGI application that answers nothing."""


def main(folder: str) -> None:
    sys.path[:0] = [str(ROOT / "platform")]
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    from server.http_server import serve_http

    leave_with_parent()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        print(bound.getsockname()[1], flush=True)
        asyncio.run(serve_http(no_pages, bound, asyncio.Event(), asyncio.Event(), relays=Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1])
