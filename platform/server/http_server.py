"""uvicorn inside our own event loop. The server stops on a signal or when the parent process ends."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from peer_agent.machine.leave_request import on_end_of_input
from server.http_connections import Config, Requests
from server.stranger_limits import Limits, Owners, Strangers, usual_limits
from server.websocket_connections import Sockets

GRACE_S = 2


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which would raise the signal again and skip our cleanup."""

    def __init__(self, config: uvicorn.Config, started: asyncio.Event) -> None:
        super().__init__(config)
        self.is_up = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    application: object,
    bound: socket.socket,
    stop: asyncio.Event,
    started: asyncio.Event,
    *,
    limits: Limits | None = None,
    relays: Path | None = None,
) -> None:
    """Serve HTTP until `stop`. Set `started` once the server accepts requests.

    `relays` is the data folder with the sockets of the relays to which connections are passed.
    """
    limits = limits or usual_limits()
    config = Config(
        application,  # type: ignore[arg-type] # uvicorn's own description of ASGI is narrower
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type] # only ever handed to call_later
        http=Requests,
        ws=Sockets,
        proxy_headers=False,
        server_header=False,
    )
    config.limits, config.strangers, config.owners, config.relays = limits, Strangers(limits), Owners(), relays
    server = Server(config, started)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on SIGINT or SIGTERM. A second signal ends the process immediately."""
    loop = asyncio.get_running_loop()

    def ask(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def stop_with_input(stop: asyncio.Event) -> None:
    """Set `stop` when standard input closes, which means that the parent process has ended, even if it was killed."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already stopped
            loop.call_soon_threadsafe(stop.set)

    on_end_of_input(ask)
