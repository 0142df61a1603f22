"""The listening side of data links: admission, limits on sockets, and a deadline for authentication."""

import asyncio
import errno
import http
import secrets
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from peer_agent.network.certificate import Certificate
from peer_agent.network.data_socket import WideSocket
from peer_agent.network.link import FORWARDS, SOCKET_OPTIONS, Connection, LinkLost, Refused, tune
from peer_agent.protocol.credentials import CLOCK_TOLERANCE_S, Credential
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import MAX_HANDSHAKE, MAX_MESSAGE
from peer_agent.protocol.session import Identity, Link, Session, Side

Handle = Callable[[Connection], Awaitable[None]]

HANDED_BYTES = 128 * 1024  # more than an address and the head of a request
CREDENTIAL_S = 3.0  # deadline for authentication after the socket opens (rule 40)


class Caps(Struct, frozen=True):
    """Limits on concurrent sockets.

    Authenticated peers have no limit per address, because many of them may share one.
    """

    per_credential: int = 4
    per_address: int = 32  # unauthenticated sockets
    unauthenticated: int = 128


CAPS = Caps()


class Admission:
    """Counts sockets as they open, authenticate and close. Sockets are used only as keys."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._address_of: dict[ServerConnection, str] = {}
        self._at: Counter[str] = Counter()
        self.strangers: set[ServerConnection] = set()
        self.links: dict[ServerConnection, Connection] = {}

    def enter(self, socket: ServerConnection, address: str) -> bool:
        """Count the socket as unauthenticated until `know` or `leave` is called. Return False if too many are open."""
        self._address_of[socket] = address
        self._at[address] += 1
        self.strangers.add(socket)
        return self._at[address] <= self._caps.per_address and len(self.strangers) <= self._caps.unauthenticated

    def know(self, socket: ServerConnection, link: Connection) -> Connection | None:
        """Count an authenticated socket. Forward links are not counted here, because the forwarder counts them.

        If the credential has too many links, return its oldest link, which may be dead, for the caller to close.
        Otherwise, return None.
        """
        self._no_stranger(socket)
        if link.session.link is Link.FORWARD:
            return None
        same = [key for key, other in self.links.items() if _owner(other) == _owner(link)]
        self.links[socket] = link
        return self.links.pop(same[0]) if len(same) >= self._caps.per_credential else None

    def leave(self, socket: ServerConnection) -> None:
        self._no_stranger(socket)
        self.links.pop(socket, None)

    def _no_stranger(self, socket: ServerConnection) -> None:
        self.strangers.discard(socket)
        address = self._address_of.pop(socket, None)
        if address is not None:
            self._at[address] -= 1
            if not self._at[address]:
                del self._at[address]


def _owner(link: Connection) -> tuple[PeerId, RunId] | None:
    """Return the peer and run in the link's credential, which stay the same when the credential is renewed."""
    return (link.credential.peer, link.credential.run) if link.credential is not None else None


class Server:
    """A relay's listener. `handle` serves each data link until it returns; `forward` serves forward links."""

    def __init__(
        self,
        *,
        identity_of: Callable[[], Identity],
        handle: Handle,
        admit: Callable[[Credential], Fault | None],
        doors: Admission,
        credential_s: float,
        message_bytes: int,
        certificate: Certificate | None,
        clock: Callable[[], float],
        forward: Handle | None,
    ) -> None:
        self._identity_of, self._handle, self._admit = identity_of, handle, admit
        self._forward = forward
        self._certificate = certificate
        self._doors, self._credential_s, self._clock = doors, credential_s, clock
        self._message_bytes = message_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: WebSocketServer

    @property
    def port(self) -> int:
        """The port that the server listens on. There is none if another process hands connections over."""
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self._listening.close(close_connections=False)
        for stranger in self._doors.strangers:
            stranger.transport.abort()
        for task in self._tasks:
            task.cancel()
        await self._listening.wait_closed()

    async def listen(self, host: str, port: int, handed_over: socket.socket | None = None) -> None:
        """Listen on a port, or receive connections that another process sends through a socket.

        Raises Problem E401 if another program uses the port, E407 if the server cannot listen on this host.
        """
        options = SOCKET_OPTIONS | {"max_size": MAX_HANDSHAKE}
        if self._certificate is not None:
            options["ssl"] = self._certificate.context
        source = HandedOver(handed_over) if handed_over is not None else None
        options |= {"sock": source} if source is not None else {"host": host, "port": port}
        try:
            self._listening = await serve_websockets(
                self._serve_one,
                create_connection=_counted_by(self._doors, source.heads if source is not None else {}),
                process_request=_turn_away,
                select_subprotocol=self._offered,
                open_timeout=self._credential_s,
                **options,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Problem.of("E401", port=port, holder="another program") from error
            raise Problem.of("E407", host=host, port=port, reason=error.strerror or error) from error

    def _offered(self, _: ServerConnection, wanted: Sequence[Subprotocol]) -> Subprotocol | None:
        return FORWARDS if self._forward is not None and FORWARDS in wanted else None

    async def _serve_one(self, socket: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if (link := await self._let_in(socket)) is not None:
                await self._lend(link)
        finally:
            self._tasks.discard(task)

    async def _let_in(self, socket: ServerConnection) -> Connection | None:
        """Authenticate a socket. Return its open link, or None if authentication failed."""
        assert isinstance(socket, _Counted)
        identity = self._identity_of()
        nonce = secrets.token_bytes(32)
        fingerprint = self._certificate.fingerprint if self._certificate is not None else ""
        session = Session(
            Side.LISTENING,
            Link.FORWARD if socket.subprotocol == FORWARDS else Link.DATA,
            identity,
            nonce=nonce,
            server=identity.name,
            version="",
            fingerprint=fingerprint,
        )
        link = Connection(socket, session, url=str(socket.remote_address), clock=self._clock)

        def admit(credential: Credential) -> Fault | None:
            fault = self._admit(credential)
            if fault is None:
                link.allow(self._message_bytes)
            return fault

        try:
            async with asyncio.timeout_at(socket.opened_at + self._credential_s):
                await link.shake_hands(admit)
        except (LinkLost, Refused):
            return None
        except TimeoutError:
            link.abort()  # without a closing handshake, which would take as long again
            return None
        tune(socket)
        if (oldest := self._doors.know(socket, link)) is not None:
            oldest.abort()
        return link

    async def _lend(self, link: Connection) -> None:
        assert link.credential is not None
        lasts_s = link.credential.expires + CLOCK_TOLERANCE_S - self._clock()
        expiry = asyncio.get_running_loop().call_later(max(lasts_s, 0), self._expire, link)
        handle = self._forward if self._forward and link.session.link is Link.FORWARD else self._handle
        try:
            await handle(link)
        except* (LinkLost, Refused):
            pass  # this is how links normally end; the peer can reconnect
        finally:
            expiry.cancel()
            await link.close()

    def _expire(self, link: Connection) -> None:
        """Close a link when its credential expires. A revoked peer gets no new credential, so this ends its links."""
        closing = asyncio.create_task(link.close(Fault.of("E202")))
        self._tasks.add(closing)
        closing.add_done_callback(self._tasks.discard)


class HandedOver(socket.socket):
    """Acts as a listening socket, but receives connections that another process on this machine has accepted.

    Each datagram has the client's address, a line feed, and the bytes that the other process has already read. The
    connection itself is the ancillary data (SCM_RIGHTS). `heads` keeps those bytes, by the connection's file number,
    until the connection is served.
    """

    type = socket.SOCK_STREAM  # asyncio listens only on sockets of this type

    def __init__(self, source: socket.socket) -> None:
        super().__init__(fileno=source.detach())
        self.heads: dict[int, bytes] = {}

    def listen(self, backlog: int = 0, /) -> None:
        """Do nothing, because the other process does the listening."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        data, numbers, _, _ = socket.recv_fds(self, HANDED_BYTES, 1)
        if not numbers:
            raise BlockingIOError
        address, _, head = data.partition(b"\n")
        connection = socket.socket(fileno=numbers[0])
        self.heads[connection.fileno()] = head
        return connection, (address.decode(), 0)


class _Counted(WideSocket, ServerConnection):
    """A listener's socket. `doors` counts it as soon as it opens, before any HTTP request."""

    doors: Admission
    heads: dict[int, bytes]  # bytes that another process has read from connections, by file number
    has_room = False
    opened_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = transport.get_extra_info("peername")
        self.opened_at = self.loop.time()
        self.has_room = self.doors.enter(self, str(address[0]) if address else "")
        super().connection_made(transport)
        if self.heads and (head := self.heads.pop(transport.get_extra_info("socket").fileno(), b"")):
            self.loop.call_soon(self.data_received, head)

    def connection_lost(self, exc: Exception | None) -> None:
        self.doors.leave(self)
        super().connection_lost(exc)


def _counted_by(counting: Admission, begun: dict[int, bytes]) -> type[_Counted]:
    class CountedHere(_Counted):
        doors = counting
        heads = begun

    return CountedHere


def _turn_away(socket: ServerConnection, _: Request) -> Response | None:
    assert isinstance(socket, _Counted)
    if socket.has_room:
        return None
    return socket.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections. Come again later.\n")


async def serve_data(
    host: str,
    port: int,
    *,
    identity_of: Callable[[], Identity],
    handle: Handle,
    admit: Callable[[Credential], Fault | None],
    caps: Caps = CAPS,
    credential_s: float = CREDENTIAL_S,
    message_bytes: int = MAX_MESSAGE,
    certificate: Certificate | None = None,
    clock: Callable[[], float] = time.time,
    forward: Handle | None = None,
    handed_over: socket.socket | None = None,
) -> Server:
    """Start a peer's listener for data links.

    `identity_of` is called for each link, because credentials are renewed. `admit` accepts or refuses an authenticated
    peer before the welcome. `message_bytes` limits the length of messages; `handle` may raise the limit for a link.
    Raises Problem E401 if another program uses the port, E407 if the listener cannot use this host.
    """
    server = Server(
        identity_of=identity_of,
        handle=handle,
        admit=admit,
        doors=Admission(caps),
        credential_s=credential_s,
        message_bytes=message_bytes,
        certificate=certificate,
        clock=clock,
        forward=forward,
    )
    await server.listen(host, port, handed_over)
    return server
