"""uvicorn's HTTP connections, with limits on the size and duration of request heads, bodies and responses."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from config.proxies import visitor_of
from server.door import hand_over, place_in
from server.stranger_limits import HEAD_BYTES, MOST_PIPELINED, STRANGER_BYTES, Limits, Owners, Strangers

REASON = f"The head of a request has up to {HEAD_BYTES} bytes here.\n".encode()
TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(REASON),
    REASON,
)


class Config(uvicorn.Config):
    """uvicorn's settings, plus the limits and counts shared by all of a server's connections."""

    limits: Limits
    strangers: Strangers
    owners: Owners
    relays: Path | None = None  # the data folder with the sockets of relays, if connections can be passed to them


class TooManyRequests(Exception):
    """Raised if a connection has too many pipelined requests. No client that reads its responses has that many."""


class Requests(HttpToolsProtocol):
    """An HTTP connection with limits that uvicorn lacks: on heads, bodies, pipelining and unread responses."""

    config: Config
    timer: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None
    head_left = HEAD_BYTES
    is_in_head = True
    body_bytes = 0  # bytes of the body since the last check

    def turn_out(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Accept the connection unless there are too many, and start the timeout for the first head."""
        super().connection_made(transport)
        if len(self.connections) > self.config.limits.connections:
            self.turn_out()
        else:
            self._await_head()

    def _await_head(self) -> None:
        self.config.strangers.enter(self, self.client[0] if self.client else "")
        self._set_timer(self.config.limits.head_s, self.turn_out)

    def data_received(self, data: bytes) -> None:
        """Limit the size of a request's head, because the parser would hold all of it in memory."""
        while data and self.parser is not None and not self.transport.is_closing():
            part = data[: self.head_left] if self.is_in_head else data
            if not part:
                self.transport.write(TOO_LONG)
                self.transport.close()
                return
            if self.is_in_head:
                self.head_left -= len(part)
                if self.timer is None:
                    self._await_head()
            else:
                self.body_bytes += len(part)
            data = data[len(part) :]
            super().data_received(part)
            if self.transport.get_protocol() is not self:
                return  # the connection is now a WebSocket

    def on_headers_complete(self) -> None:
        """Cancel the head's timeout and start the body's. Raises TooManyRequests if too many requests are pipelined."""
        self.is_in_head = False
        self._forget()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise TooManyRequests
        super().on_headers_complete()
        limits, length = self.config.limits, _length_of(self.headers)
        self.body_bytes = 0
        if length > STRANGER_BYTES:
            self._set_timer(limits.body_s, self._look_at_pace)
        else:
            self._set_timer(limits.body_s, self.turn_out)

    def _look_at_pace(self) -> None:
        limits = self.config.limits
        if self.body_bytes < limits.slowest * limits.body_s and not self.flow.read_paused:
            self.turn_out()
            return
        self.body_bytes = 0
        self._set_timer(limits.body_s, self._look_at_pace)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._forget()
        self.is_in_head, self.head_left = True, HEAD_BYTES

    def handle_websocket_upgrade(self) -> None:
        """Hand a connection meant for the relay to the relay's process. Turn any other into a WebSocket of the site."""
        self._forget()
        place = place_in(self.config.relays, self.url) if self.config.relays is not None else None
        if place is None:
            super().handle_websocket_upgrade()
            return
        self.connections.discard(self)
        forwarded = b",".join(value for name, value in self.headers if name == b"x-forwarded-for")
        visitor = visitor_of(self.client[0] if self.client else "", forwarded.decode("latin-1"))
        head = b"".join(b"%b: %b\r\n" % pair for pair in self.headers)
        hand_over(place, self.transport, b"GET %b HTTP/1.1\r\n%b\r\n" % (self.url, head), visitor)

    def pause_writing(self) -> None:
        """Start a timeout, because the client is not reading the response."""
        super().pause_writing()
        self.unread = self.loop.call_later(self.config.limits.unread_s, self.turn_out)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        if self.unread is not None:
            self.unread.cancel()
        super().connection_lost(exc)

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self.timer = self.loop.call_later(seconds, then)

    def _forget(self) -> None:
        self.config.strangers.leave(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _length_of(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the body length declared in the headers, or 0. The parser has already rejected non-numeric values."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
