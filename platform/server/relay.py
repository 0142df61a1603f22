"""The site's own relay: a child process, which the site restarts whenever it dies.

Unless the relay has a port of its own, it serves connections that arrive at the site's port under the relay's path
(`server.door`).
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils import timezone

from accounts.services import create_machine_token, relay_keeper
from config.environment import in_url
from peer_agent.protocol.errors import Fault
from peer_agent.site.login_token import VARIABLE
from runs.processes import child_environment
from server.door import close_door, open_door, relay_path
from server.lock import Place

logger = logging.getLogger(__name__)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 60.0  # after this time, a relay counts as healthy; if it dies then, pauses are short again
PATIENCE_S = 2.0


async def keep_relay(
    site: str, place: Place, *, host: str, port: int, advertise: str, stop: asyncio.Event, at_door: bool = False
) -> None:
    """Run the relay until `stop`. Restart it whenever it dies, with increasing delays.

    `at_door` means that site processes pass connections to the relay, which then ignores `host` and `port`.
    """
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        began = time.monotonic()
        status = await _run_once(_command(site, host, port, advertise), place, stop, at_door=at_door)
        if stop.is_set():
            return
        pause_s = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
        logger.warning("%s", Fault.of("E406", reason=f"it ended with {status}", log=place.relay_log))
        await _pause(stop, pause_s)


def enrolment() -> dict[str, str]:
    """Return environment variables with a new enrolment token for the relay.

    Other users of this machine can read a process's arguments, but not its environment. The relay uses the token only
    if it is not yet enrolled at this address.
    """
    keeper = relay_keeper()
    keeper.tokens.exclude(used_at=None).delete()
    keeper.tokens.filter(expires_at__lte=timezone.now()).delete()  # an unused token may be on its way to another relay
    return {VARIABLE: create_machine_token(person=keeper).secret}


def address_behind(public_url: str, place: Place) -> str:
    """Return the address at which the site's own port leads to this place's relay."""
    parts = urlsplit(public_url)
    return f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{relay_path(place)}"


def advertised(public_url: str, port: int) -> str:
    """Return the relay's address for other machines, or "" if they cannot reach it or its port is not fixed."""
    parts = urlsplit(public_url)
    if not port or parts.hostname in ("127.0.0.1", "localhost", "::1"):
        return ""
    return f"{'wss' if parts.scheme == 'https' else 'ws'}://{in_url(parts.hostname or '')}:{port}"


def _command(site: str, host: str, port: int, advertise: str) -> list[str]:
    address = ["--advertise", advertise] if advertise else []
    place = ["--host", host, "--port", str(port)]
    return [sys.executable, "-m", "peer_agent.cli", "relay", site, *place, *address, "--attached"]


async def _run_once(command: list[str], place: Place, stop: asyncio.Event, *, at_door: bool) -> int:
    """Run the relay until it ends or `stop` is set, and return its exit status.

    The relay reads a pipe from this process and exits when it closes, so it ends even if this process is killed.
    """
    connections = open_door(place) if at_door else None
    numbers = (connections.fileno(),) if connections is not None else ()
    command = [*command, *(f"--handed-over={number}" for number in numbers)]
    place.relay_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = await sync_to_async(enrolment)()
    environment = {**child_environment(), "MANYHANDS_HOME": str(place.relay_home), **token}
    with place.relay_log.open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=settings.ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            # Ctrl-C reaches this process only, which then ends the relay.
            process_group=0 if os.name == "posix" else None,
            pass_fds=numbers,
        )
    if connections is not None:
        connections.close()
    ended, asked = asyncio.create_task(child.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not ended.done():
        await _end(child, child.terminate, ended)
    if at_door:
        close_door(place)
    return ended.result()


async def _end(child: asyncio.subprocess.Process, ask: Callable[[], None], ended: "asyncio.Task[int]") -> None:
    ask()
    await asyncio.wait({ended}, timeout=PATIENCE_S)
    if not ended.done():
        child.kill()
        await ended


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    await asyncio.wait({waiting := asyncio.create_task(stop.wait())}, timeout=seconds)
    waiting.cancel()
