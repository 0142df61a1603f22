"""Which way a listener is dialled: directly, and through a relay where that fails (rule 27)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256

from peer_agent.network.link import DIAL_S, Connection, Refused
from peer_agent.protocol.credentials import FORWARDED
from peer_agent.protocol.errors import Problem, codes
from peer_agent.protocol.messages import Listener
from peer_agent.site.credential import RunAccess

QUICK_S = 3.0  # to dial again after a link has ended, where a relay can forward: a round may be waiting
AGAIN_S = 600.0  # until a direct link is looked for in place of a forwarded one
BUSY_S, BUSY_LOOKS = 1.0, 600  # between looks whether a round is still open; with staleness 1 there is always one
Serve = Callable[[Connection], Awaitable[None]]


class Dialling:
    """The ways to one listener. `relays`: to which a link is open now; `is_busy`: whether a round is open."""

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
        self._turn = 0  # of those who forward
        self._has_failed = False  # directly, at the last attempt
        self._was_open = False

    async def connect(self) -> Connection:
        """The next attempt. Of two that fail the second goes through a relay, and each time through another."""
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
        """Diallers and listeners spread over the relays."""
        self._has_failed = False
        ordered = sorted(relays, key=self._place)
        self._turn += 1
        return await self.access.dial_through(ordered[(self._turn - 1) % len(ordered)], self.listener)

    def _place(self, relay: Listener) -> bytes:
        return sha256(f"{relay.peer} {self.access.peer} {self.listener.peer}".encode()).digest()

    async def hold(self, link: Connection, serve: Serve) -> None:
        """Serve a link until it ends; a forwarded one until there is a direct one, and then that."""
        if link.is_direct:
            return await serve(link)
        serving, looking = asyncio.create_task(_run(serve, link)), asyncio.create_task(self._find_direct())
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
        """Outside of rounds: the listener goes over to a new link at once."""
        while True:
            await asyncio.sleep(AGAIN_S)
            for _ in range(BUSY_LOOKS):
                if not self.is_busy():
                    break
                await asyncio.sleep(BUSY_S)
            with suppress(Problem, Refused):
                return await self.access.dial_listener(self.listener, DIAL_S)


async def _run(serve: Serve, link: Connection) -> None:
    await serve(link)
