"""`manage.py serve`: run the site, coordinator, worker and relay. Options can omit the worker or the relay."""

import asyncio
import contextlib
import gc
import json
import os
import socket
from argparse import ArgumentParser
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand

from accounts.selectors import has_operator
from config import environment, upgrades
from config.environment import in_url, public_settings
from coordination.hosts.claims import forget_the_dead
from coordination.snapshots import expire_pending
from jobs import queue
from jobs.queue import Kind
from peer_agent.protocol.errors import Problem
from runs.background import request_after_start
from runs.storage import clear_workspaces
from server.backups import back_up_before_changes
from server.door import CAN_PASS, can_pass
from server.housekeeping import keep_house
from server.http_server import serve_http, stop_on_signals, stop_with_input
from server.lock import Place, own_place
from server.reachability import bound_socket, checked_public, hint_for_neighbours, relay_port_for
from server.relay import address_behind, advertised, keep_relay
from server.watchdog import watch_loop
from server.worker import running_worker
from web.feed.live import prepare_looks
from web.pages.accounts.login import operator_secret

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (how to reach ourselves when bound to every address)

# Allocations until a collection of new objects, and of these until one of the second and third generation.
COLLECTED_AFTER = 20_000, 20, 50


class Command(BaseCommand):
    """A command that runs everything a site needs. DATABASE_URL and REDIS_URL select external services."""

    help = "Run the whole platform: pages, API, coordinator, worker and a relay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1)")
        parser.add_argument("--port", type=int, default=8000, help="port of the pages; 0: any free one (default 8000)")
        more = "a port of the relay's own; 0: any free one (default: the port of the pages, under /relay/)"
        parser.add_argument("--relay-port", type=int, default=None, help=more)
        parser.add_argument("--public-url", default="", help="the site's address as people type it")
        parser.add_argument("--attached", action="store_true", help="leave when standard input ends")
        parser.add_argument("--no-worker", action="store_true", help="leave background work to `manage.py worker`")
        parser.add_argument("--no-relay", action="store_true", help="leave averaging to relays of their own")

    def handle(self, **options: Any) -> None:
        """Serve until a stop signal arrives.

        Raises Problem E334 if the public address needs encryption, E401 if a port is taken, E404 if another process
        uses the data folder, E405 if a setting is invalid, or E418 if a newer version has changed the database.
        """
        check_parts(options)
        os.umask(0o077)  # only this account can read tables, texts and logs, as with keys
        data = Path(settings.DATA)
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            is_alone = settings.DATABASES["default"]["ENGINE"].endswith("sqlite3") or not settings.REDIS_URL
            place = stack.enter_context(own_place(data, alone=is_alone))
            bound = stack.enter_context(bound_socket(options["host"], options["port"]))
            host = in_url(LOOPBACK.get(options["host"], options["host"]))
            inner = f"http://{host}:{bound.getsockname()[1]}"
            public = public_address(options["public_url"], inner)
            warning = checked_public(public)
            for name, value in public_settings(public).items():
                setattr(settings, name, value)
            # The backup comes first, because any query creates a missing SQLite file.
            if copy := back_up_before_changes(data):
                self.stdout.write(f"The tables change with this version; as they were, they are kept in {copy}")
            upgrades.refuse_unknown_changes()
            call_command("migrate", verbosity=0, interactive=False, stdout=self.stdout)
            ready = stack.enter_context(announced(place, public))
            if is_alone:
                clear_workspaces()
                queue.release_all()
            if not options["no_worker"]:
                stack.enter_context(running_worker())
                request_after_start()
                queue.put(Kind.WATCH_CHECKS)
            expire_pending()
            if is_alone:
                forget_the_dead()
            prepare_looks()
            collect_seldom()
            hint = hint_for_neighbours(options["host"], bound.getsockname()[1], public)
            self._greet(public, data, [line for line in (warning, hint) if line])
            relay = None if options["no_relay"] else relay_place(place, public, options["host"], options["relay_port"])
            asyncio.run(serve(bound, ready, inner=inner, relay=relay, attached=options["attached"]))

    def _greet(self, public: str, data: Path, warnings: list[str]) -> None:
        self.stdout.write(f"Manyhands is at {public}/")
        for line in warnings:
            self.stdout.write(line)
        also = f" and in the bucket {settings.S3['bucket']}" if settings.S3 else ""
        self.stdout.write(f"Everything is kept in {data}{also}")
        if not has_operator():
            self.stdout.write(f"The first operator takes charge at {public}/operator/{operator_secret()}/")
        self.stdout.write("Ctrl-C stops it.")
        self.stdout.flush()


def collect_seldom() -> None:
    """Make the pauses of Python's garbage collector rare. With 1,000 machines, a full collection takes 0.3 s."""
    gc.freeze()  # a collection skips what was loaded until now
    gc.set_threshold(*COLLECTED_AFTER)


class Announcement:
    """The file that tells other programs the site's address. It exists while the site is up."""

    def __init__(self, place: Place, url: str) -> None:
        self.place, self.url = place, url

    def write(self) -> None:
        draft = self.place.announcement.with_suffix(".new")
        draft.write_text(json.dumps({"url": self.url, "pid": os.getpid()}))
        draft.replace(self.place.announcement)


@contextlib.contextmanager
def announced(place: Place, url: str) -> Iterator[Announcement]:
    place.announcement.unlink(missing_ok=True)
    try:
        yield Announcement(place, url)
    finally:
        place.announcement.unlink(missing_ok=True)


def public_address(asked: str, inner: str) -> str:
    """Return the site's public address: the option `asked`, else MANYHANDS_PUBLIC_URL, else `inner`.

    Raises Problem E405 if the address is invalid.
    """
    return environment.address("--public-url", asked or environment.text("MANYHANDS_PUBLIC_URL") or inner, environ={})


def check_parts(options: Mapping[str, Any]) -> None:
    """Raise Problem E405 if the options contradict one another.

    `--no-worker` needs REDIS_URL, so that another process can read the queue. `--no-relay` rules out `--relay-port`.
    """
    if options["no_worker"] and not settings.REDIS_URL:
        reason = "without REDIS_URL the queue is in this process, and nobody else can take from it"
        raise Problem.of("E405", name="--no-worker", reason=reason)
    if options["no_relay"] and options["relay_port"] is not None:
        raise Problem.of("E405", name="--relay-port", reason="it conflicts with --no-relay")


class RelayPlace(NamedTuple):
    """The place where the relay accepts connections: its own port or, if `at_door`, a socket used by site processes."""

    host: str
    port: int
    advertise: str
    at_door: bool = False


def relay_place(place: Place, public: str, host: str, asked: int | None) -> RelayPlace:
    """Return the place where the relay accepts connections.

    They normally arrive at the site's own port. The relay gets a separate port if one was requested, or if this system
    cannot pass connections between processes.
    """
    if asked is None and can_pass(place):
        return RelayPlace("", 0, address_behind(public, place), at_door=True)
    port = relay_port_for(public, host, asked or 0)
    advertise = advertised(public, port)
    return RelayPlace(host if advertise else "::1" if ":" in host else "127.0.0.1", port, advertise)


async def serve(
    bound: socket.socket, ready: Announcement, *, inner: str, relay: RelayPlace | None, attached: bool
) -> None:
    """Run all parts of the site until one ends or a stop is requested, then stop the others."""
    from coordination.hosts.supervisor import run_hosts
    from server.asgi import application

    stop, started = asyncio.Event(), asyncio.Event()
    stop_on_signals(stop)
    if attached:
        stop_with_input(stop)

    async def announce_and_relay() -> None:
        await started.wait()
        ready.write()
        if relay is None:
            await stop.wait()
        else:
            await keep_relay(inner, ready.place, **relay._asdict(), stop=stop)

    beside = [announce_and_relay(), keep_house(stop), watch_loop(stop)]
    relays = ready.place.folder if CAN_PASS else None
    parts = [serve_http(application, bound, stop, started, relays=relays), run_hosts(stop), *beside]
    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(_until_stopped(part, stop))


async def _until_stopped(part: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    try:
        await part
    finally:
        stop.set()
