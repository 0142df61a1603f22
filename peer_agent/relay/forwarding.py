"""Forwarding: a relay connects a dialler to a listener that the dialler cannot reach itself (rule 27). A relay forwards
only to listeners that are on the coordinator's list and that it can reach itself. It sees only ciphertext.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from peer_agent.network.link import FORWARDED_BYTES, Connection
from peer_agent.network.tunnel import carry, connected
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import FORWARDED
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId, RunId

Find = Callable[[RunId, PeerId], m.Listener | None]


class Limits(Struct, frozen=True):
    """Limits on concurrent forwarded links, and timeouts.

    A listener limits the unauthenticated sockets from each address. `per_listener` is below that limit, so that one
    relay cannot use it up for other relays at its address.
    """

    per_credential: int = 8
    per_listener: int = 24
    in_all: int = 128
    first_s: float = 10.0  # deadline for the request after authentication (rule 40)
    connect_s: float = 5.0
    idle_s: float = 600.0  # seconds without a byte before a link is closed; diallers whose rounds are rarer dial again


LIMITS = Limits()


class Forwarder:
    """Forwards links.

    `find` returns a run's listener if the coordinator lists it and this relay can reach it, otherwise None.
    """

    def __init__(self, find: Find, limits: Limits = LIMITS) -> None:
        self._find, self.limits = find, limits
        self.links: dict[Connection, PeerId | None] = {}  # each link's target; None before its request

    async def serve(self, link: Connection) -> None:
        """Serve an authenticated dialler's link until either end closes.

        Raises LinkLost or Refused if the link fails.
        """
        try:
            self._enter(link)
            asked = await self._asked(link)
            await self._connect(link, asked)
        except Problem as problem:
            await link.close(problem.fault)
        finally:
            self.links.pop(link, None)

    def _enter(self, link: Connection) -> None:
        same = sum(_owner(other) == _owner(link) for other in self.links)
        if same >= self.limits.per_credential or len(self.links) >= self.limits.in_all:
            raise _refusal("yet unnamed", "it forwards as much as it can")
        self.links[link] = None

    async def _asked(self, link: Connection) -> m.Forward:
        """Return the dialler's request.

        Raises Problem E208 if the first message is not a request or does not arrive in time. Raises Problem E213 if the
        dialler's credential does not cover the request.
        """
        asked: object = None
        try:
            async with asyncio.timeout(self.limits.first_s):
                asked = await link.receive()
        except TimeoutError:
            link.abort()
        if not isinstance(asked, m.Forward):
            raise Problem.of("E208", message=type(asked).__name__)
        credential = link.credential
        if credential is None or credential.role not in FORWARDED or credential.run != asked.run:
            raise Problem.of("E213")
        return asked

    async def _connect(self, link: Connection, asked: m.Forward) -> None:
        listener = self._find(asked.run, asked.to)
        if listener is None or asked.to == _owner(link)[0]:
            raise _refusal(asked.to, "it is not known here, or not reached either")
        self._replace(link, asked.to)
        address = urlsplit(listener.url)
        try:
            async with asyncio.timeout(self.limits.connect_s):
                plain = await connected(address.hostname or "", address.port or 443)
        except (OSError, TimeoutError) as error:
            raise _refusal(asked.to, f"it is not reached: {str(error) or 'no answer'}") from error
        link.allow(FORWARDED_BYTES)
        try:
            await link.send(m.Forwarding(run=asked.run, to=asked.to))
        except BaseException:
            plain.close()
            raise
        await carry(link, plain, asked.run, idle_s=self.limits.idle_s)

    def _replace(self, link: Connection, to: PeerId) -> None:
        """Record that a link forwards to this listener. Abort older links from the same peer to it, which may be dead.

        Raises Problem E232 if too many links forward to the listener.
        """
        for other in [other for other, at in self.links.items() if at == to and _owner(other) == _owner(link)]:
            del self.links[other]
            other.abort()
        if sum(at == to for at in self.links.values()) >= self.limits.per_listener:
            raise _refusal(to, "it forwards as much to it as it can")
        self.links[link] = to


def _owner(link: Connection) -> tuple[PeerId, RunId]:
    """Return the peer and run in the link's credential, which stay the same when the credential is renewed."""
    assert link.credential is not None
    return link.credential.peer, link.credential.run


def _refusal(to: str, reason: str) -> Problem:
    return Problem(Fault.of("E232", to=to[:8], reason=reason))
