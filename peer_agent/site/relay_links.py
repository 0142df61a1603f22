"""A peer's links to a run's listeners. They are dialled when a listener appears, and kept open during a round (rule
41). Most listeners are relays. A listening member has its own certificate, whose fingerprint the site supplies. If a
member cannot be dialled, a relay forwards the link, and the member does not count as reached.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from random import Random

from peer_agent.network.link import DIAL_S, Connected, Connection, LinkLost, Refused, Waiting, keep
from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.credentials import FORWARDED
from peer_agent.protocol.errors import Problem, codes
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.log.records import RecordHead, SpanEntry
from peer_agent.protocol.messages import Listener
from peer_agent.protocol.wire import LOGGED, Frame
from peer_agent.site.credential import RunAccess

QUICK_S = 3.0  # deadline for redialling directly if a relay can forward instead, as a round may be waiting
AGAIN_S = 600.0  # seconds between attempts to replace a forwarded link with a direct one
# Seconds between checks for an open round, and the most checks made, because with staleness 1 a round is always open.
BUSY_S, BUSY_LOOKS = 1.0, 600
Serve = Callable[[Connection], Awaitable[None]]


class Dialling:
    """Connects to a listener directly, or through one of the open `relays` (rule 27)."""

    def __init__(
        self,
        access: RunAccess,
        listener: Listener,
        relays: Callable[[], Sequence[Listener]],
        is_busy: Callable[[], bool],
    ) -> None:
        self.access, self.listener, self.is_busy = access, listener, is_busy
        self.may_forward = bool(listener.fingerprint) and access.role in FORWARDED
        self._relays = relays
        self._turn = 0  # index of the next relay to forward
        self._has_failed = False  # True if the last direct attempt failed
        self._was_open = False

    async def connect(self) -> Connection:
        """Try once to connect. If the last direct attempt failed, go through a relay, a different one each time."""
        relays = self._relays() if self.may_forward else ()
        was_open, self._was_open = self._was_open, False
        if self._has_failed and relays:
            link = await self._through(relays)
        else:
            link = await self._directly(QUICK_S if was_open and relays else DIAL_S)
        self._was_open = True
        return link

    async def _directly(self, timeout_s: float) -> Connection:
        try:
            return await self.access.dial_listener(self.listener, timeout_s)
        except Problem as problem:
            self._has_failed = problem.fault.code == codes.NOT_REACHED
            raise

    async def _through(self, relays: Sequence[Listener]) -> Connection:
        """Dial through a relay. Different pairs of dialler and listener prefer different relays."""
        self._has_failed = False
        ordered = sorted(relays, key=self._place)
        self._turn += 1
        return await self.access.dial_through(ordered[(self._turn - 1) % len(ordered)], self.listener)

    def _place(self, relay: Listener) -> bytes:
        return sha256(f"{relay.peer} {self.access.peer} {self.listener.peer}".encode()).digest()

    async def hold(self, link: Connection, serve: Serve) -> None:
        """Serve a link until it ends. If it is forwarded, replace it once a direct link can be opened."""
        if link.is_direct:
            return await serve(link)
        serving, looking = asyncio.ensure_future(serve(link)), asyncio.create_task(self._find_direct())
        direct: Connection | None = None
        try:
            await asyncio.wait((serving, looking), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return serving.result()
            direct = looking.result()
        finally:
            for task in (serving, looking):
                task.cancel()
            await asyncio.gather(serving, looking, return_exceptions=True)
            if direct is None and not looking.cancelled() and looking.exception() is None:
                await looking.result().close()
        link.abort()
        try:
            await serve(direct)
        finally:
            await direct.close()

    async def _find_direct(self) -> Connection:
        """Keep trying to open a direct link, and return it.

        Prefer the time between rounds, because the listener uses the direct link as soon as it opens.
        """
        while True:
            await asyncio.sleep(AGAIN_S)
            for _ in range(BUSY_LOOKS):
                if not self.is_busy():
                    break
                await asyncio.sleep(BUSY_S)
            with suppress(Problem, Refused):
                return await self.access.dial_listener(self.listener, DIAL_S)


log = logging.getLogger(__name__)

FETCH_S = 30.0  # longest wait for the next chunk of a requested span
Keep = Callable[[list[bytes]], Awaitable[bool]]
Hear = Callable[[PeerId, m.AnyMessage | Frame], Awaitable[None]]


class _Wanted:
    """A span requested from a relay's log. If any chunk exceeds `largest` bytes, the span counts as missing."""

    def __init__(self, entry: SpanEntry, largest: int) -> None:
        self.entry, self.largest = entry, largest
        self.payloads: dict[int, bytes] = {}  # by chunk
        self.news = asyncio.Event()
        self.is_missing = False

    def keep_chunk(self, chunk: int, payload: bytes | memoryview) -> None:
        if self.entry.first <= chunk < self.entry.stop and len(payload) <= self.largest:
            self.payloads[chunk] = bytes(payload)
        else:
            self.is_missing = True


class DataLinks:
    """Links to a run's listeners. `hear` receives all messages except answers to `fetch`."""

    def __init__(
        self,
        access: RunAccess,
        hear: Hear,
        changed: Callable[[], None] = lambda: None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin without links. `changed` is called when a link opens or ends. While `is_busy`, no link is replaced."""
        self.access, self.hear, self.changed, self.is_busy = access, hear, changed, is_busy
        self.open: dict[PeerId, Connection] = {}
        self._tasks: dict[m.Listener, asyncio.Task[None]] = {}
        self._wanted: dict[tuple[PeerId, RunId, int, int], _Wanted] = {}

    @property
    def direct(self) -> set[PeerId]:
        """Peers with an open link that no relay forwards. Only these peers count as reached (rule 27)."""
        return {peer for peer, link in self.open.items() if link.is_direct}

    @property
    def addresses(self) -> list[str]:
        """Addresses of the relays that links are kept to. Members are omitted, because they come and go."""
        return sorted(relay.url for relay in self._tasks if not relay.fingerprint)

    @property
    def reached(self) -> list[str]:
        """Addresses of the relays that have an open link."""
        return sorted(relay.url for relay in self._forwarders())

    def follow(self, relays: tuple[m.Listener, ...]) -> None:
        """Keep a link to each of these listeners, and close all other links."""
        for relay in [relay for relay in self._tasks if relay not in relays]:
            self._tasks.pop(relay).cancel()
        for relay in relays:
            if relay.peer != self.access.peer and (relay not in self._tasks or self._tasks[relay].done()):
                self._tasks[relay] = asyncio.create_task(self._keep(relay), name=f"link {relay.url}")
                self._tasks[relay].add_done_callback(_tell_failure)

    async def close(self) -> None:
        ending = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*ending, return_exceptions=True)

    async def _keep(self, relay: m.Listener) -> None:
        if not await self.access.may_dial(relay):
            log.info("%s is not dialled: it is an address of a local network, and the site is not in it", relay.url)
            return

        def told(state: Connected | Waiting) -> None:
            if isinstance(state, Waiting):
                log.info("relay %s: %s", relay.url, state.fault)

        dialling = Dialling(self.access, relay, self._forwarders, self.is_busy)
        try:
            await keep(
                dialling.connect,
                partial(dialling.hold, serve=partial(self.serve, relay.peer)),
                on_state=told,
                random=Random(),
            )
        except Problem as problem:
            log.warning("relay %s: %s", relay.url, problem)

    def _forwarders(self) -> list[m.Listener]:
        return [relay for relay in self._tasks if relay.peer in self.open and not relay.fingerprint]

    async def serve(self, peer: PeerId, link: Connection) -> None:
        self.open[peer] = link
        self.changed()
        try:
            while True:
                body = await link.receive()
                if not self._answers(peer, body):
                    await self.hear(peer, body)
        finally:
            if self.open.get(peer) is link:
                del self.open[peer]
                self.changed()
            for place, wanted in self._wanted.items():
                if place[0] == peer:
                    wanted.is_missing = True
                    wanted.news.set()

    def _answers(self, peer: PeerId, body: m.AnyMessage | Frame) -> bool:
        match body:
            case Frame(run=run, step=index, span=span) if body.fence == LOGGED:
                wanted = self._wanted.get((peer, run, index, span))
                if wanted is not None:
                    wanted.keep_chunk(body.chunk, body.payload)
            case m.SpanMissing(run=run, index=index, span=span):
                wanted = self._wanted.get((peer, run, index, span))
                if wanted is not None:
                    wanted.is_missing = True
            case _:
                return False
        if wanted is not None:
            wanted.news.set()
        return True

    async def fetch(self, record: RecordHead, entry: SpanEntry, keep: Keep) -> bool:
        """Fetch a span of the log from one peer after another until `keep` accepts its payloads.

        Begin with the span's reducer. Return False if `keep` accepts none.
        """
        for peer in sorted(self.open, key=lambda peer: (peer != entry.reducer, peer)):
            payloads = await self.ask(peer, record, entry)
            if payloads is not None and await keep(payloads):
                return True
        return False

    async def ask(self, peer: PeerId, record: RecordHead, entry: SpanEntry) -> list[bytes] | None:
        """Request a span from one relay's log.

        Return its chunks in order, or None if the relay does not send all of them.
        """
        run, index, span = record.run, record.index, entry.span
        link, place = self.open.get(peer), (peer, run, index, span)
        if link is None or place in self._wanted:
            return None
        wanted = self._wanted[place] = _Wanted(entry, encoded_size(record.codec, record.chunk_elements))
        try:
            async with asyncio.timeout(FETCH_S):
                await link.send(m.FetchSpan(run=run, index=index, span=span))
            while len(wanted.payloads) < entry.stop - entry.first and not wanted.is_missing:
                async with asyncio.timeout(FETCH_S):
                    await wanted.news.wait()
                wanted.news.clear()
        except (LinkLost, Refused):
            return None
        except TimeoutError:
            link.abort()  # a frozen relay costs one wait and is redialled when it wakes
            return None
        finally:
            del self._wanted[place]
        return None if wanted.is_missing else [wanted.payloads[chunk] for chunk in sorted(wanted.payloads)]


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", task.get_name(), exc_info=error)
