"""uvicorn inside our own loop, and who asks it to stop: a signal, or the end of the process that started us."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from peer_agent.protocol.messages import MAX_MESSAGE

GRACE_S = 2
AGENTS = "/ws/agents/"
MAX_WORD = 256  # bytes that a page says at once: all that it ever says is `again`
PARENT_POLL_S = 0.5


class Sockets(WebSocketsSansIOProtocol):
    """Takes of a message no more than whoever sends it may ever need; a longer one ends the socket with 1009."""

    def handle_connect(self, event: Request) -> None:
        """The path is known, and nothing has been sent yet."""
        self.conn.max_message_size = MAX_MESSAGE if event.path.partition("?")[0] == AGENTS else MAX_WORD
        super().handle_connect(event)


class Server(uvicorn.Server):
    """Leaves signals alone: uvicorn would raise them again after serving, and nothing behind it would be cleared up."""

    def __init__(self, config: uvicorn.Config, started: asyncio.Event) -> None:
        super().__init__(config)
        self.is_up = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


async def serve_http(application: object, bound: socket.socket, stop: asyncio.Event, started: asyncio.Event) -> None:
    """Serve until `stop`; `started` is set once the first request can come."""
    config = uvicorn.Config(
        application,  # type: ignore[arg-type]  # uvicorn's own description of ASGI is narrower
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
        ws=Sockets,
        proxy_headers=False,
        server_header=False,
    )
    server = Server(config, started)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGINT and SIGTERM ask to stop; a second one ends at once."""
    loop = asyncio.get_running_loop()

    def ask(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


async def stop_with_parent(stop: asyncio.Event) -> None:
    """Ask to stop when the process that started us is gone, also by SIGKILL."""
    parent = os.getppid()
    while os.getppid() == parent and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PARENT_POLL_S)
    stop.set()
