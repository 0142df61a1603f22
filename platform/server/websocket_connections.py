"""uvicorn's WebSockets, with limits on clients' messages before and after authentication.

An agent's WebSocket is closed if it falls silent: agents ping the site every two seconds (`peer_agent.network`).
"""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from config.proxies import visitor_of
from coordination.sockets.limits import PROVED
from peer_agent.protocol.messages import MAX_HANDSHAKE, MAX_MESSAGE
from server.http_connections import Config
from server.stranger_limits import HEAD_BYTES, MOST_FRAGMENTS, MOST_UNREAD, MOST_WAITING

AGENTS = "/ws/agents/"
MAX_WORD = 256  # bytes in a message from a page, which only ever sends `again`
SILENT_S = 10.0  # seconds without a byte before an agent's WebSocket is closed
HANDSHAKE_BYTES = HEAD_BYTES + 2 * MAX_HANDSHAKE  # most bytes in total before the proof


class Sockets(WebSocketsSansIOProtocol):
    """A WebSocket with limits on its client. It closes with code 1009 if a message is longer than currently allowed."""

    config: Config
    owner = ""
    is_agent = is_known = False
    taken = 0  # bytes received
    read_at = 0.0  # when the last byte arrived, by the loop's clock
    timer: asyncio.TimerHandle | None = None

    def turn_out(self) -> None:
        self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        """Set the limits for the requested path before any message arrives."""
        self.is_agent = event.path.partition("?")[0] == AGENTS
        self.conn.max_message_size = MAX_HANDSHAKE if self.is_agent else MAX_WORD
        super().handle_connect(event)
        if self.response.status_code != 101:
            return
        extensions: dict[str, Any] = self.scope["extensions"]
        if self.is_agent:
            extensions[PROVED] = self._prove
            peer = self.client[0] if self.client else ""
            forwarded = ",".join(event.headers.get_all("X-Forwarded-For"))
            self.config.strangers.enter(self, visitor_of(peer, forwarded))
            self.timer = self.loop.call_later(self.config.limits.proof_s, self.turn_out)

    def _prove(self, owner: str) -> None:
        """Raise the limits, because the client has authenticated, and count the connection as its owner's."""
        if self.disconnected or self.is_known:
            return
        self._forget()
        self.is_known, self.owner = True, owner
        self.conn.max_message_size = MAX_MESSAGE
        self.config.owners.enter(self, owner)
        self._look_in(SILENT_S)

    def _look_in(self, wait_s: float) -> None:
        self.timer = self.loop.call_later(wait_s, self._look, self.loop.time() + wait_s)

    def _look(self, due: float) -> None:
        """Close the WebSocket if its agent has been silent.

        If this process was suspended, wait again, because bytes may have arrived that are not yet read.
        """
        now = self.loop.time()
        if now - due > SILENT_S / 2:
            self.read_at = now
        left_s = self.read_at + SILENT_S - now
        if left_s > 0:
            self._look_in(left_s)
        else:
            self.turn_out()

    def start_keepalive(self) -> None:
        """Send pings to pages only, since agents ping the site themselves."""
        if not self.is_agent:
            super().start_keepalive()

    async def send(self, message: Any) -> None:
        """Send a message. A page's WebSocket needs no proof, so it counts as authenticated once accepted."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.is_agent:
            self.is_known = True

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes. Before authentication, close the WebSocket once too many have arrived."""
        self.taken += len(data)
        self.read_at = self.loop.time()
        if self.is_known or self.taken <= HANDSHAKE_BYTES:
            super().data_received(data)
        else:
            self.turn_out()

    def handle_cont(self, event: Frame) -> None:
        """Limit the number of fragments per message, since a client could send empty ones forever."""
        if len(self.frames) >= MOST_FRAGMENTS:
            self.turn_out()
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping, but close the WebSocket if the client is not reading the answers."""
        if self.transport.get_write_buffer_size() > MOST_UNREAD:
            self.turn_out()
        else:
            super().handle_ping()

    def send_receive_event_to_app(self) -> None:
        """Pass a message on to the application. If a page's WebSocket has too many unread messages, close it."""
        if not self.is_agent and self.queue.qsize() >= MOST_WAITING:
            self.turn_out()
        else:
            super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self.owner:
            self.config.owners.leave(self, self.owner)
        super().connection_lost(exc)

    def _forget(self) -> None:
        self.config.strangers.leave(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
