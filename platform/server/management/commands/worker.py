"""`manage.py worker`: run the background tasks of site processes that were started with `serve --no-worker`."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from peer_agent.protocol.errors import Problem
from runs.tasks import requeue_unfinished
from server.http_server import stop_on_signals, stop_with_input
from server.worker import running_worker

LOOK_S = 1.0


class Command(BaseCommand):
    """A command that runs the tasks queued at REDIS_URL, using the site's files and tables."""

    help = "Do the site's background work: texts, first parameters, replays, releases."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--attached", action="store_true", help="leave when standard input ends")

    def handle(self, **options: Any) -> None:
        """Run tasks until a stop signal arrives. Raises Problem E405, or CommandError if the worker ends on its own."""
        if not settings.REDIS_URL:
            raise Problem.of("E405", name="REDIS_URL", reason="it is empty, but the site's queue needs it")
        os.umask(0o077)  # files are readable for this account only, as with `serve`
        Path(settings.DATA).mkdir(mode=0o700, parents=True, exist_ok=True)
        with running_worker() as worker:
            requeue_unfinished()
            if not asyncio.run(self._is_asked(worker, attached=options["attached"])):
                raise CommandError("The worker has ended by itself; what it said stands above.")

    async def _is_asked(self, worker: threading.Thread, *, attached: bool) -> bool:
        """Wait until a stop is requested or the worker ends. Return True if a stop was requested."""
        stop = asyncio.Event()
        stop_on_signals(stop)
        self.stdout.write("The worker is ready. Ctrl-C stops it.")
        self.stdout.flush()
        if attached:
            stop_with_input(stop)
        while worker.is_alive() and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)
        return stop.is_set()
