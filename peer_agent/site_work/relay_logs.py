"""Fetch averaged bytes from relays' logs over data links. The site's replay does this in a process without an event
loop. It requests each span by its position and verifies the span by its root. Relays that have failed most often are
tried last. Only one span at a time is in memory.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta, Struct

from peer_agent import __version__
from peer_agent.network.link import Connection, LinkLost, Refused, dial
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import Peer, PeerId, Run
from peer_agent.protocol.messages import Listener
from peer_agent.protocol.session import Identity, Link
from peer_agent.protocol.wire import LOGGED, Frame

MOST_RELAYS = 32


class Reach(Struct, frozen=True):
    """The addresses of relays, and a credential for reading a run's log on them. The site writes a new `Reach` before
    the credential expires.
    """

    run: Run
    peer: Peer
    credential: Signed
    relays: Annotated[tuple[Listener, ...], Meta(max_length=MOST_RELAYS)]


def write_reach(path: Path, reach: Reach) -> None:
    """Write a `Reach` to a file, atomically."""
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.msgpack.encode(reach))
    draft.replace(path)


def read_reach(path: Path) -> Reach:
    return msgspec.msgpack.decode(path.read_bytes(), type=Reach)


FETCH_S = 30.0  # longest wait for a span, in addition to ...
SLOWEST_BPS = 64 * 1024  # ... the time that its bytes take at this rate, in bytes per second
OTHERS = 64  # a fetch ends once the relay has sent this many messages besides the span's chunks

Take = Callable[[Sequence[bytes]], bool]


def patience_s(sizes: Sequence[int]) -> float:
    """Return how many seconds to wait for a span whose chunks have these sizes in bytes."""
    return FETCH_S + sum(sizes) / SLOWEST_BPS


class RelayLogs:
    """One run's logs on all relays. `reach`: a file with a `Reach`, read again for each fetch and each new link."""

    def __init__(self, reach: Path, key: Ed25519PrivateKey, site_key: bytes) -> None:
        self.run = read_reach(reach).run
        self._reach, self._key, self._site_key = reach, key, site_key
        self._links: dict[PeerId, Connection] = {}
        self._failures: Counter[PeerId] = Counter()
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.close()

    def fetch(self, index: int, span: int, first: int, sizes: Sequence[int], take: Take) -> bool:
        """Try one relay after another until `take` accepts the bytes that a relay sends for the span. Return False if
        it accepts no relay's bytes.
        """
        known = read_reach(self._reach).relays
        for relay in sorted(known, key=lambda relay: self._failures[relay.peer]):
            payloads = self._runner.run(self._ask(relay, index, span, first, sizes))
            if payloads is not None and take(payloads):
                return True
            self._failures[relay.peer] += 1
        return False

    async def _ask(
        self, relay: m.Listener, index: int, span: int, first: int, sizes: Sequence[int]
    ) -> list[bytes] | None:
        """Return a relay's payloads for a span, or None if it does not answer, lacks the span or sends other data."""
        for _ in range(2):  # a link that was left open may have ended
            is_old = relay.peer in self._links
            try:
                async with asyncio.timeout(patience_s(sizes)):
                    link = self._links.get(relay.peer) or await self._dial(relay)
                    return await self._read(link, m.FetchSpan(run=self.run, index=index, span=span), first, sizes)
            except (LinkLost, Refused, TimeoutError, Problem):
                self._forget(relay.peer)
                if not is_old:
                    return None
        return None

    async def _dial(self, relay: m.Listener) -> Connection:
        reach = read_reach(self._reach)
        identity = Identity(reach.peer, self._key, reach.credential, self._site_key)
        link = await dial(relay.url, link=Link.DATA, identity=identity, server=relay.peer, version=__version__)
        self._links[relay.peer] = link
        return link

    async def _read(
        self, link: Connection, wanted: m.FetchSpan, first: int, sizes: Sequence[int]
    ) -> list[bytes] | None:
        await link.send(wanted)
        payloads: dict[int, bytes] = {}
        for _ in range(len(sizes) + OTHERS):
            body = await link.receive()
            match body:
                case Frame(run=run, step=index, fence=fence, span=span, chunk=chunk) if (
                    (run, index, fence, span) == (wanted.run, wanted.index, LOGGED, wanted.span)
                    and 0 <= chunk - first < len(sizes)
                    and len(body.payload) == sizes[chunk - first]
                ):
                    payloads[chunk] = bytes(body.payload)
                case m.SpanMissing(run=run, index=index, span=span) if (run, index, span) == (
                    wanted.run,
                    wanted.index,
                    wanted.span,
                ):
                    return None
            if len(payloads) == len(sizes):
                return [payloads[chunk] for chunk in sorted(payloads)]
        raise LinkLost("it speaks of something else")

    def _forget(self, peer: PeerId) -> None:
        link = self._links.pop(peer, None)
        if link is not None:
            link.abort()

    async def _close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))
