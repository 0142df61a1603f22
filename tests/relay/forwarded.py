"""A relay that forwards, a listener with its own TLS, and diallers that can reach the listener only through the
relay."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peer_agent.network.certificate import new_certificate
from peer_agent.network.link import Connection, dial
from peer_agent.network.relay_server import Server
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import MAX_HANDSHAKE
from peer_agent.protocol.session import Link
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay.forwarding import LIMITS, Forwarder, Limits
from tests.agent.scripted_site import PATIENCE_S, RELAY, TRAINER, OwnAccess
from tests.averaging.rounds import RUN
from tests.network.loopback import listening, stay

LISTENER = PeerId("a" * 32)
REAL: dict[str, Any] = {"clock": time.time}  # the real clock, by which these credentials are valid
NOWHERE = "wss://127.0.0.1:9/"  # an address at which no program listens
Handle = Callable[[Connection], Awaitable[None]]


def gradient(chunk: int, payload: bytes) -> Frame:
    return Frame(Kind.GRADIENT, RUN, 1, 1, 1, 0, chunk, 0, payload)


async def give_back(link: Connection) -> None:
    """Send each received chunk back as an average, as a reducer does."""
    while True:
        frame = await link.receive()
        if isinstance(frame, Frame):
            await link.send(Frame(Kind.AVERAGE, RUN, 1, 1, 1, 0, frame.chunk, 0, bytes(frame.payload)))


async def access_of(folder: Path, peer: PeerId, role: Role) -> OwnAccess:
    access = OwnAccess(folder / peer, peer, role, "")
    await access.renew()
    return access


class Forwarded:
    def __init__(self, folder: Path, relay: m.Listener) -> None:
        self.folder, self.relay = folder, relay

    async def way(self, peer: PeerId = TRAINER, role: Role = Role.TRAINER) -> Connection:
        who = (await access_of(self.folder, peer, role)).identity()
        return await dial(self.relay.url, link=Link.FORWARD, identity=who, server=self.relay.peer, version="1")

    async def asked(self, peer: PeerId = TRAINER, to: PeerId = LISTENER, run: RunId = RUN) -> Connection:
        link = await self.way(peer)
        await link.send(m.Forward(run=run, to=to))
        return link

    async def why_not(self) -> str:
        """Return the relay's reason for refusing a forward link, or an empty text if it accepts one."""
        try:
            (await self.way()).abort()
        except Problem as problem:
            return str(problem)
        return ""


class Scene(Forwarded):
    """A forwarding setup. `listener`: the listener as listed by the coordinator. `far`: the same listener at an
    unreachable address.
    """

    def __init__(self, folder: Path, relay: Server, forwarder: Forwarder, listener: m.Listener) -> None:
        super().__init__(folder, m.Listener(RELAY, f"ws://127.0.0.1:{relay.port}/"))
        self.forwarder, self.listener, self.server = forwarder, listener, relay
        self.far = m.Listener(listener.peer, NOWHERE, listener.fingerprint)

    async def dialled(self, peer: PeerId = TRAINER, role: Role = Role.TRAINER) -> Connection:
        access = await access_of(self.folder, peer, role)
        return await access.dial_through(self.relay, self.far)

    async def until_open(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.forwarder.links) != count:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)


@asynccontextmanager
async def scene(
    folder: Path,
    handle: Handle = give_back,
    limits: Limits = LIMITS,
    port: Callable[[int], int] = lambda port: port,
    **of_listener: Any,
) -> AsyncIterator[Scene]:
    """Run the setup. `port` maps the listener's port to the port that the relay dials."""
    relay = await access_of(folder, RELAY, Role.RELAY)
    member = await access_of(folder, LISTENER, Role.AUXILIARY)
    certificate = new_certificate()
    known: dict[PeerId, m.Listener] = {}

    def find(run: RunId, peer: PeerId) -> m.Listener | None:
        return known.get(peer) if run == RUN else None

    forwarder = Forwarder(find, limits)
    own: dict[str, Any] = {"who": member.identity(), "identity_of": member.identity, "certificate": certificate}
    theirs: dict[str, Any] = {"who": relay.identity(), "identity_of": relay.identity, "forward": forwarder.serve}
    theirs["message_bytes"] = MAX_HANDSHAKE
    async with listening(handle, **(own | REAL | of_listener)) as there, listening(stay, **(theirs | REAL)) as here:
        url = f"wss://127.0.0.1:{port(there.port)}/"
        known[LISTENER] = m.Listener(LISTENER, url, certificate.fingerprint)
        known[TRAINER] = m.Listener(TRAINER, url, certificate.fingerprint)
        yield Scene(folder, here, forwarder, known[LISTENER])
