"""Links between two machines through a relay, which sees only ciphertext and cannot change it.

The dialing machine dials over one end of a local socket pair. The relay connects to the listener with a plain socket.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from peer_agent.network.data_socket import LOOK_S, Gathering, Silence, Unsent, set_option
from peer_agent.network.link import Connection, LinkLost, Refused, dial, until_one_ends
from peer_agent.network.uplink import TRAFFIC, Traffic
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.session import Identity, Link
from peer_agent.protocol.wire import PIECE_BYTES, Frame, Kind

ASK_S = 10.0  # how long to wait for a relay's answer
FOR_EVER = float("inf")
# Memory that one tunnel takes up on a relay: the link's buffers, and one piece in each direction
TUNNEL_BYTES = 2 * 1024 * 1024


class _Moved:
    def __init__(self) -> None:
        self.at = time.monotonic()

    def now(self) -> None:
        self.at = time.monotonic()


async def carry(
    link: Connection, plain: socket.socket, run: RunId, *, idle_s: float = FOR_EVER, traffic: Traffic = TRAFFIC
) -> None:
    """Carry bytes both ways between a link and a plain socket, until one closes or no byte passes for `idle_s`.

    Closes only the plain socket. Stores one piece per direction, and reads the next only once the other side has taken
    it (rule 35).
    """
    moved = _Moved()
    ends = (_rest(moved, idle_s), _silent(plain))
    parts = (_take(link, plain, run, moved, traffic), _give(link, plain, moved, traffic), *ends)
    try:
        with suppress(LinkLost, Refused, OSError):  # both ends notice these errors themselves
            await until_one_ends(*parts)
    finally:
        plain.close()


async def _take(link: Connection, plain: socket.socket, run: RunId, moved: _Moved, traffic: Traffic) -> None:
    loop = asyncio.get_running_loop()
    gathering = Gathering(plain, loop)
    while piece := await loop.sock_recv(plain, PIECE_BYTES):
        moved.now()
        traffic.add(received=len(piece))
        gathering.came(len(piece), in_message=False)
        await link.send(Frame(Kind.FORWARDED, run, 0, 0, 0, 0, 0, 0, piece))


async def _give(link: Connection, plain: socket.socket, moved: _Moved, traffic: Traffic) -> None:
    loop = asyncio.get_running_loop()
    unsent = Unsent(plain)
    while isinstance(body := await link.receive(), Frame):
        if body.payload:
            moved.now()
        await loop.sock_sendall(plain, body.payload)
        unsent.went(len(body.payload), loop.time())
        traffic.add(sent=len(body.payload))
    await link.close(Fault.of("E208", message=type(body).__name__))


async def _rest(moved: _Moved, idle_s: float) -> None:
    while (left_s := moved.at + idle_s - time.monotonic()) > 0:  # noqa: ASYNC110 (every byte postpones the end)
        await asyncio.sleep(min(left_s, 3600.0))


async def _silent(plain: socket.socket) -> None:
    silence = Silence(plain, time.monotonic())
    while not silence.is_too_long(time.monotonic()):  # noqa: ASYNC110 (only the system can tell)
        await asyncio.sleep(LOOK_S)


async def connected(host: str, port: int) -> socket.socket:
    """Connect a plain socket for `carry`. Raises OSError if that fails."""
    loop = asyncio.get_running_loop()
    family, kind, number, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    plain = socket.socket(family, kind, number)
    plain.settimeout(0.0)
    try:
        await loop.sock_connect(plain, address)
    except BaseException:
        plain.close()
        raise
    set_option(plain, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    set_option(plain, socket.IPPROTO_TCP, "TCP_NODELAY", 1)
    return plain


async def dial_through(
    relay: Connection,
    listener: m.Listener,
    *,
    run: RunId,
    identity: Identity,
    version: str,
    clock: Callable[[], float] = time.time,
) -> Connection:
    """Open a data link to a listener through a relay, and pin the listener's certificate.

    `relay` is the forward link to the relay. It closes together with the data link. If the relay does not forward,
    raises LinkLost, Refused or TimeoutError; such an error does not come from the listener. If the listener cannot be
    reached, raises Problem or Refused, as `dial` does.
    """
    try:
        await _ask(relay, run, listener)
    except BaseException:
        relay.abort()
        raise
    near, far = _pair()
    beneath = asyncio.create_task(_carried(relay, far, run))
    try:
        link = await dial(
            listener.url,
            link=Link.DATA,
            identity=identity,
            server=listener.peer,
            version=version,
            fingerprint=listener.fingerprint,
            clock=clock,
            over=near,
        )
    except BaseException:
        relay.abort()  # also ends the tasks using this forward link
        raise
    link.beneath = beneath
    return link


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets on this machine, with send buffers as small as those of a link (rule 36)."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(0.0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE_BYTES)
    return ends


async def _ask(relay: Connection, run: RunId, listener: m.Listener) -> None:
    async with asyncio.timeout(ASK_S):
        await relay.send(m.Forward(run=run, to=listener.peer))
        answer = await relay.receive()
    if answer != m.Forwarding(run=run, to=listener.peer):
        raise LinkLost("the relay did not answer what it was asked")


async def _carried(relay: Connection, far: socket.socket, run: RunId) -> None:
    try:
        await carry(relay, far, run, traffic=Traffic())
    finally:
        await relay.close()
