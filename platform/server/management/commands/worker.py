"""`manage.py worker`: do the background jobs of site processes started with `serve --no-worker`."""

import asyncio
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from prometheus_client import start_http_server

from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from runs.background import request_after_start
from server.http_server import stop_on_signals, stop_with_input
from server.worker import running_worker


class Command(BaseCommand):
    """Does the site's background jobs, using the site's data folder and database."""

    help = "Do the site's background work: texts, first parameters, replays, releases."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--attached", action="store_true", help="leave when standard input ends")

    def handle(self, **options: Any) -> None:
        """Do jobs until a stop signal arrives. Raises Problem E405 if REDIS_URL or the metrics address is unusable."""
        if not settings.REDIS_URL:
            reason = "it is empty, but the site's processes wake the worker through it"
            raise Problem.of("E405", name="REDIS_URL", reason=reason)
        os.umask(0o077)  # only this account can read new files, as with `serve`
        Path(settings.DATA).mkdir(mode=0o700, parents=True, exist_ok=True)
        if settings.METRICS_ADDRESS is not None:
            show_metrics(*settings.METRICS_ADDRESS)
        with running_worker():
            request_after_start()
            queue.put(Kind.WATCH_CHECKS)
            asyncio.run(self._wait(attached=options["attached"]))

    async def _wait(self, *, attached: bool) -> None:
        """Wait until a signal requests a stop or, if `attached`, until standard input ends."""
        stop = asyncio.Event()
        stop_on_signals(stop)
        self.stdout.write("The worker is ready. Ctrl-C stops it.")
        self.stdout.flush()
        if attached:
            stop_with_input(stop)
        await stop.wait()


def show_metrics(host: str, port: int) -> None:
    """Serve metrics to Prometheus at this address, in a thread. Raises Problem E405 if the address cannot be used."""
    try:
        start_http_server(port, host)
    except OSError as error:
        raise Problem.of("E405", name="MANYHANDS_METRICS_ADDRESS", reason=error.strerror or error) from error
