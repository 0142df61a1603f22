"""Links: WebSocket connections driven by a `protocol` session, and a loop that reconnects them."""

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from random import Random
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection as Socket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
    WebSocketException,
)
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from peer_agent.network.addresses import check_encrypted, is_loopback
from peer_agent.network.certificate import fingerprint_of, pinning_context
from peer_agent.network.data_socket import Dialled, WideSocket, send_all, set_option
from peer_agent.network.uplink import DOWNLINK, TRAFFIC, Traffic, Uplink
from peer_agent.protocol.credentials import Credential
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.errors.agent import AGENT
from peer_agent.protocol.messages import MAX_MESSAGE, AnyMessage, Message
from peer_agent.protocol.session import Failed, Identity, Link, MessageReceived, Opened, Session, Side
from peer_agent.protocol.wire import HEADER, PIECE_BYTES, Frame

DIAL_S = 10.0  # deadline for connecting and the handshake together
CLOSE_S = 2.0  # deadline for the closing exchange, after which the socket is aborted
WRITE_LIMIT = 128 * 1024  # two of the smallest chunks; a `drop` message cannot remove buffered bytes
READ_QUEUE = 4  # number of buffered messages at which reading from the socket stops
SOCKET_OPTIONS: dict[str, Any] = {
    "compression": None,
    "max_size": MAX_MESSAGE,
    "max_queue": READ_QUEUE,
    "write_limit": WRITE_LIMIT,
    "close_timeout": CLOSE_S,
    # A data link has no pings, because a saturated uplink delays answers indefinitely. Only progress shows that it is
    # alive. Control links have pings of their own (`WideSocket.ping_often`).
    "ping_interval": None,
    "ping_timeout": None,
}
# Offered by WebSockets to a forwarding relay; other listeners do not accept it.
FORWARDS = Subprotocol("manyhands.forward")
FORWARDED_BYTES = HEADER.size + PIECE_BYTES  # limit on a message on a WebSocket to a forwarding relay
FIRST_DELAY_S, LONGEST_DELAY_S, LONGEST_HINT_S = 0.2, 30.0, 3600.0

PASSING = frozenset({codes.NOT_REACHED, codes.STRANGE_ANSWER})  # the site may just be restarting
# Errors on this machine's own side that may resolve themselves, or that do not stop its work
HEALING = PASSING | frozenset({"E108", "E109", "E114", "E126", "E134", "E135", "E136", "E139"})
CANNOT_HEAL = (frozenset(AGENT) - HEALING) | frozenset(
    {"E205", "E209", "E213", "E214", "E216", "E217", "E227", "E228", "E229", "E305", "E306", "E308", "E324", "E410"}
)


class LinkLost(Exception):
    """The link ended without a numbered error, because the peer or the network failed."""


class Refused(Exception):
    """A numbered error ended the link. `remote`: True if the error came from the peer.

    `retry_after_s`: how many seconds to wait before trying again. It is negative if the other end gives no hint.
    """

    def __init__(self, fault: Fault, retry_after_s: float = -1.0, *, remote: bool = True) -> None:
        super().__init__(str(fault))
        self.fault, self.retry_after_s, self.remote = fault, retry_after_s, remote


class Connection:
    """One open link. Several coroutines may send, but only one may receive.

    A connection passes messages on without interpreting their contents.
    """

    beneath: "asyncio.Task[None] | None" = None  # the task that carries the link if a relay forwards it

    def __init__(
        self,
        socket: Socket,
        session: Session,
        *,
        url: str,
        clock: Callable[[], float],
        traffic: Traffic = TRAFFIC,
    ) -> None:
        self.url, self.session = url, session
        self.offset_s = 0.0
        self._socket, self._clock, self._traffic = socket, clock, traffic
        self._refused: Refused | None = None
        self._held = 0

    @property
    def is_direct(self) -> bool:
        """True if no relay forwards this link."""
        return self.beneath is None

    @property
    def credential(self) -> Credential | None:
        """The peer's credential, or None if the peer is the site."""
        return self.session.peer

    async def shake_hands(self, admit: Callable[[Credential], Fault | None] = lambda _: None) -> None:
        """Perform the handshake that opens the link. `admit` may refuse an authenticated peer by returning a fault.

        Raises Refused if either end refuses, LinkLost if the link ends during the handshake.
        """
        self.session.start(self._clock())
        await self._flush()
        event = await self._next_event()
        assert isinstance(event, Opened)
        self.offset_s = event.offset_s
        if event.credential is not None and (fault := admit(event.credential)) is not None:
            self.session.outgoing()  # discards the session's welcome to the peer
            await self.close(fault)
            raise Refused(fault, remote=False)
        await self._flush()

    async def send(self, *bodies: Message | Frame) -> None:
        """Send all bodies in one write, waiting while the socket's buffer is full.

        Raises Refused if a numbered error has ended the link, LinkLost if it ended without one.
        """
        if self._refused is not None:
            raise self._refused
        for body in bodies:
            self.session.send(body)
        await self._flush()

    async def receive(self) -> AnyMessage | Frame:
        """Return the next message or frame.

        Raises Refused if a numbered error has ended the link, LinkLost if it ended without one.
        """
        event = await self._next_event()
        assert isinstance(event, MessageReceived)
        return event.body

    async def close(self, fault: Fault | None = None, retry_after_s: float = -1.0) -> None:
        """Send `fault`, if given, and close the link. Never raises.

        This takes at most `CLOSE_S`, or twice that if a relay forwards the link.
        """
        if fault is not None and self._refused is None:
            self._refused = Refused(fault, retry_after_s, remote=False)
            self.session.refuse(fault, retry_after_s)
        try:
            async with asyncio.timeout(CLOSE_S):
                with suppress(LinkLost, Refused):
                    await self._flush()
                await self._socket.close()
        except TimeoutError:
            self.abort()
        if self.beneath is not None:
            await asyncio.wait([self.beneath], timeout=CLOSE_S)

    def allow(self, message_bytes: int) -> None:
        """Raise the length limit on incoming messages to `message_bytes`. Never lowers it."""
        protocol = self._socket.protocol
        protocol.max_message_size = max(protocol.max_message_size or 0, min(message_bytes, MAX_MESSAGE))

    def abort(self) -> None:
        """Abort the socket immediately. Does nothing if it is already closed."""
        with suppress(AttributeError):  # a closed transport of Python's proactor has no loop
            self._socket.transport.abort()

    async def _next_event(self) -> Opened | MessageReceived:
        while self._refused is None:
            try:
                data = await self._socket.recv(decode=False)
            except ConnectionClosed as closed:
                raise self._end(closed) from closed
            self._traffic.add(received=len(data))
            if self.session.link is not Link.CONTROL:
                self._hold(DOWNLINK.held)
                await DOWNLINK.came(len(data))
            event = self.session.receive(data, self._clock())
            if isinstance(event, Failed):
                self._refused = Refused(event.fault, event.retry_after_s, remote=event.remote)
                await self.close()
            elif event is not None:
                return event
            elif self._refused is None:
                await self._flush()
        raise self._refused

    def _hold(self, most_bytes: int) -> None:
        """Limit the system's receive buffer. A large one would absorb megabytes before a rate limit takes effect."""
        system: socket.socket | None = self._socket.transport.get_extra_info("socket")
        if most_bytes != self._held and system is not None:
            self._held = most_bytes
            set_option(system, socket.SOL_SOCKET, "SO_RCVBUF", most_bytes)

    async def _flush(self) -> None:
        if messages := self.session.outgoing():
            try:
                await send_all(self._socket, messages)
            except ConnectionClosed as closed:
                raise self._end(closed) from closed
            self._traffic.add(sent=sum(map(len, messages)))

    def _end(self, closed: ConnectionClosed) -> LinkLost | Refused:
        if self._refused is None and _is_overlong(closed):
            fault = Fault.of("E210", size=f"more than {MAX_MESSAGE}", limit=MAX_MESSAGE)
            self._refused = Refused(fault, remote=bool(closed.rcvd_then_sent))
        return self._refused or LinkLost(str(closed.__cause__ or closed))


def _is_overlong(closed: ConnectionClosed) -> bool:
    """Return True if the WebSocket library rejected a message as too long before the session saw it."""
    return any(part is not None and part.code == CloseCode.MESSAGE_TOO_BIG for part in (closed.rcvd, closed.sent))


async def dial(
    url: str,
    *,
    link: Link,
    identity: Identity,
    server: str,
    version: str,
    fingerprint: str = "",
    clock: Callable[[], float] = time.time,
    timeout_s: float = DIAL_S,
    over: socket.socket | None = None,
) -> Connection:
    """Open a link to `server` at `url`.

    `fingerprint` pins a self-signed certificate. `over` is a connected socket to use, whose traffic is counted
    elsewhere. Plaintext ws:// is allowed to this machine and its local network; the caller must warn about it.

    Raises Problem E104 if the server cannot be reached, E105 if the URL is plaintext outside the local network, and
    E110 if the server answers something unexpected. Raises Refused if either end refuses the link, with E217 if the
    certificate is wrong.
    """
    with _in_words(url, timeout_s):
        async with asyncio.timeout(timeout_s):
            await asyncio.to_thread(check_encrypted, url, secure="wss", plain="ws")
            opened = await _connect(url, link, fingerprint, over)
            nonce = secrets.token_bytes(32)
            session = Session(
                Side.DIALLING, link, identity, nonce=nonce, server=server, version=version, fingerprint=fingerprint
            )
            traffic = TRAFFIC if over is None else Traffic()
            connection = Connection(opened, session, url=url, clock=clock, traffic=traffic)
            await _shake_hands_or_cut(connection)
    return connection


async def reach(url: str, *, link: Link, timeout_s: float = DIAL_S) -> None:
    """Check that a WebSocket opens at `url`, without sending messages.

    Raises Problem E104 if the server cannot be reached, E105 if the URL is plaintext outside the local network, and
    E110 if the server answers something unexpected.
    """
    with _in_words(url, timeout_s):
        async with asyncio.timeout(timeout_s):
            await asyncio.to_thread(check_encrypted, url, secure="wss", plain="ws")
            await (await _connect(url, link)).close()


@contextmanager
def _in_words(url: str, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Problem.of("E104", url=url, reason=f"no answer within {timeout_s:g} seconds") from error
    except (OSError, InvalidURI, InvalidProxy, ProxyError, LinkLost) as error:
        raise Problem.of("E104", url=url, reason=error) from error
    except WebSocketException as error:
        if isinstance(error, InvalidStatus) and error.response.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            raise Problem.of("E104", url=url, reason="it has too many connections at the moment") from error
        raise Problem.of("E110", url=url, reason=error) from error


async def _shake_hands_or_cut(connection: Connection) -> None:
    try:
        await connection.shake_hands()
    except BaseException:
        connection.abort()
        raise


async def _connect(url: str, link: Link, fingerprint: str = "", over: socket.socket | None = None) -> WideSocket:
    host = urlsplit(url).hostname or ""
    options = SOCKET_OPTIONS | ({"ssl": pinning_context()} if fingerprint else {})
    options |= {"sock": over} if over is not None else {}
    options |= {"subprotocols": [FORWARDS], "max_size": FORWARDED_BYTES} if link is Link.FORWARD else {}
    try:
        options |= {"proxy": None if is_loopback(host) else True, "create_connection": Dialled}
        opened = await connect(url, open_timeout=None, **options)
    except (ImportError, ValueError) as error:
        # The system's settings name a SOCKS proxy, which needs another library, or the host name is invalid.
        raise Problem.of("E104", url=url, reason=error) from error
    if fingerprint and _certificate_of(opened) != fingerprint:
        opened.transport.abort()
        raise Refused(Fault.of("E217"), remote=False)
    if link is Link.FORWARD and opened.subprotocol != FORWARDS:
        opened.transport.abort()
        raise Problem.of("E104", url=url, reason="it does not forward")
    assert isinstance(opened, WideSocket)
    if link is Link.CONTROL:
        opened.ping_often()
    else:
        tune(opened)
    return opened


def _certificate_of(opened: Socket) -> str:
    """Return the fingerprint of the peer's certificate, or "" if it sent none."""
    encryption = opened.transport.get_extra_info("ssl_object")
    certificate = encryption.getpeercert(binary_form=True) if encryption is not None else None
    return fingerprint_of(certificate) if certificate else ""


def tune(opened: WideSocket) -> None:
    """Set up a data link's socket: read and write in large pieces, buffer little, and detect a dead peer."""
    opened.gather()
    opened.end_in_silence()
    system: socket.socket | None = opened.transport.get_extra_info("socket")
    if system is not None:
        set_option(system, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
        set_option(system, socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30)


class Connected(Struct, frozen=True):
    """The state of an open link."""


class Waiting(Struct, frozen=True):
    """The state of a link that is down because of `fault`. The next attempt is in `delay_s` seconds."""

    fault: Fault
    delay_s: float


async def keep(
    connect: Callable[[], Awaitable[Connection]],
    handle: Callable[[Connection], Awaitable[None]],
    *,
    on_state: Callable[[Connected | Waiting], None],
    random: Random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Keep a link open until `handle` returns. If the link ends before that, wait (rule 41) and reconnect.

    Raises Problem if reconnecting cannot help. Errors from `handle` other than LinkLost and Refused propagate.
    """
    attempt = 0
    while True:
        began = monotonic()
        ended = await _once(connect, handle, on_state)
        if ended is None:
            return
        if ended.retry_after_s < 0 and not heals(ended.fault):
            raise Problem(ended.fault)
        # Only a link that lasted resets the backoff. Otherwise, a link that opens and is cut at once would be retried
        # without delay.
        attempt = 0 if monotonic() - began > LONGEST_DELAY_S else attempt
        delay_s = _delay_s(attempt, ended.retry_after_s, random)
        attempt += 1
        on_state(Waiting(ended.fault, delay_s))
        await sleep(delay_s)


async def _once(
    connect: Callable[[], Awaitable[Connection]],
    handle: Callable[[Connection], Awaitable[None]],
    on_state: Callable[[Connected | Waiting], None],
) -> Refused | None:
    """Open one link and run `handle` on it. Return None if `handle` finished, or else why the link ended."""
    try:
        connection = await connect()
    except Problem as problem:
        return Refused(problem.fault, getattr(problem, "retry_after_s", 0.0) or -1.0, remote=False)
    except Refused as refused:
        return refused
    on_state(Connected())
    try:
        await handle(connection)
    except (LinkLost, Refused) as error:
        return await _reason(connection, error)
    except BaseExceptionGroup as group:
        of_the_link, others = group.split((LinkLost, Refused))
        if of_the_link is None or others is not None:
            raise
        return await _reason(connection, of_the_link)
    finally:
        await connection.close()
    return None


async def _reason(connection: Connection, error: BaseException) -> Refused:
    """Return the reason why a link ended.

    This is the refusal in `error`, or else a refusal from the peer that was not read yet, or else E104.
    """
    if (refused := _find_refusal(error)) is not None:
        return refused
    try:
        async with asyncio.timeout(CLOSE_S):
            while True:
                await connection.receive()
    except Refused as unread:
        return unread
    except (LinkLost, TimeoutError) as lost:
        return Refused(Fault.of("E104", url=connection.url, reason=lost), remote=False)


def _find_refusal(error: BaseException) -> Refused | None:
    if isinstance(error, Refused):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for one in inner if (found := _find_refusal(one)) is not None), None)


def heals(fault: Fault) -> bool:
    """Return True if reconnecting may help. Most of this machine's own errors persist until its owner acts."""
    return fault.code not in CANNOT_HEAL


def _delay_s(attempt: int, hint_s: float, random: Random) -> float:
    ceiling = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(attempt, 16))
    return min(max(hint_s, 0.0), LONGEST_HINT_S) + random.uniform(0.0, ceiling)


class _Shared:
    """State shared by both ends of a machine's link to itself: whether it has ended, and a change event."""

    def __init__(self) -> None:
        self.has_ended = False
        self.news = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so` returns True. Raises LinkLost if the link ends first."""
        while not self.has_ended and not is_so():
            await self.news.wait()
        if self.has_ended:
            raise LinkLost("the link of this machine to itself has ended")

    def wake(self) -> None:
        """Wake all waiters. Replace the event, so that later waiters wait for the next change."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class OwnLink(Connection):
    """One end of a machine's link to itself.

    Bodies are passed to the other end as objects, without a socket, a handshake or a copy.
    """

    def __init__(self, coming: deque[Any], going: deque[Any], shared: _Shared) -> None:
        self.url, self.offset_s = "", 0.0
        self._coming, self._going, self._shared = coming, going, shared

    @property
    def credential(self) -> Credential | None:
        """None, because a machine does not authenticate to itself."""
        return None

    async def send(self, *bodies: Message | Frame) -> None:
        """Queue each body once the other end has room. Raises LinkLost if the link has ended."""
        for body in bodies:
            await self._shared.until(lambda: len(self._going) < READ_QUEUE)
            self._going.append(body)
            self._shared.wake()

    async def receive(self) -> AnyMessage | Frame:
        await self._shared.until(lambda: bool(self._coming))
        body: AnyMessage | Frame = self._coming.popleft()
        self._shared.wake()
        return body

    async def close(self, fault: Fault | None = None, retry_after_s: float = -1.0) -> None:
        """Close both ends, without sending the fault."""
        del fault, retry_after_s
        self.abort()

    def allow(self, message_bytes: int) -> None:
        """Do nothing, because this link has no length limit."""

    def abort(self) -> None:
        """Close both ends immediately, and wake all waiters."""
        self._shared.has_ended = True
        self._shared.wake()


FREE = Uplink()  # never paced, because data that stays on this machine uses no uplink


def way_out(connection: Connection, uplink: Uplink) -> Uplink:
    """Return the uplink whose bandwidth this connection uses. A machine's link to itself uses none."""
    return FREE if isinstance(connection, OwnLink) else uplink


def own_link() -> tuple[OwnLink, OwnLink]:
    one, other, shared = deque[Any](), deque[Any](), _Shared()
    return OwnLink(one, other, shared), OwnLink(other, one, shared)


async def until_one_ends(*parts: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines until one of them ends, and cancel the rest. If it ended with an error, raise that error."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
