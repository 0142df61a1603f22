"""The part of a trainer that other machines dial. It reduces like a relay, but in the agent's process. This machine
is also a contributor, and exchanges chunks and averages with its own listener over a link within the process. The
listener stores the log only if the site has no relay and asks this machine to. The trainer's core sends the hellos,
because they also describe the trainer's work.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count

from peer_agent.averaging.update_log import UpdateLog
from peer_agent.network.link import Connection, LinkLost, own_link
from peer_agent.network.relay_server import Server, serve_data
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.messages import MAX_HANDSHAKE
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.opened import open_message
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay.place import Place, own_certificate
from peer_agent.relay.run import Around, RelayedRun
from peer_agent.site.credential import RunAccess
from peer_agent.site.relay_links import DataLinks

log = logging.getLogger(__name__)

TICK_S = 0.1  # seconds between ticks while chunks close at deadlines
IDLE_TICKS = 5  # without deadlines, only one in this many ticks reaches the state machine
MOST_WAITING = 4096  # Most queued events. Any more are dropped; important ones are repeated.
OF_A_LISTENER = m.SpanDone | m.Have | m.Progress | m.Arrivals | m.SlotRefused | m.Probed


class Listening:
    """Serves other machines' links to this trainer. `failed` receives the error that ends the service."""

    def __init__(
        self,
        access: RunAccess,
        links: DataLinks,
        say: Callable[[m.TO_SITE], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.access, self.links, self._say, self._failed = access, links, say, failed
        self.url = self.fingerprint = ""
        self._events: asyncio.Queue[e.Event] = asyncio.Queue(MOST_WAITING)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Server

    async def open(self, place: Place) -> None:
        """Start listening. Raises Problem E401 if the port is in use, or E407 if this machine cannot listen at the
        address. Raises Problem E113 or E106 if its certificate cannot be read or written.
        """
        certificate = await asyncio.to_thread(own_certificate, self.access.home)
        self._server = await serve_data(
            place.host,
            place.port,
            identity_of=self.access.identity,
            handle=self._serve,
            admit=self._admit,
            message_bytes=MAX_HANDSHAKE,
            certificate=certificate,
        )
        self.fingerprint = certificate.fingerprint
        self.url = place.url(self._server.port)
        around = Around(self._say_of_listener, self.links.ask, _follow_nobody, lambda _, error: self._failed(error))
        update_log = UpdateLog(self.access.home.folder / "log", self.access.site_key)
        self.run = RelayedRun(self.access.run, self.access.peer, update_log, around, url=self.url, gets_all=True)
        here, there = own_link()
        parts = (self._take(), self._tick(), self._serve_own(there), self._dial_own(here))
        self._tasks = [asyncio.create_task(part) for part in parts]
        for task in self._tasks:
            task.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.run.close(), self._server.close(), return_exceptions=True)

    def hear(self, body: m.TO_PEER) -> None:
        """Handle a message from the site that concerns a reducer. Ignore any other message."""
        if isinstance(body, m.Planned) and not body.slots:
            return  # a plan in which this machine does not reduce
        if isinstance(body, m.Probe) and not body.begins:
            self.run.probe(body)
        try:
            self._happens(e.Heard(open_message(body, self.access.site_key)))
        except Problem as problem:
            log.warning("%s", problem)

    async def hear_average(self, peer: PeerId, frame: Frame) -> None:
        """Store an average from another reducer, if this machine stores the log."""
        if self.run.state.keeper is not None and frame.kind is Kind.AVERAGE:
            await self.run.hear_average(peer, frame)

    def lose_control(self) -> None:
        self._happens(e.ControlLost())

    def _happens(self, event: e.Event) -> None:
        if not self._events.full():
            self._events.put_nowait(event)

    async def _take(self) -> None:
        while True:
            await self.run.handle(await self._events.get())

    async def _tick(self) -> None:
        for number in count():
            await asyncio.sleep(TICK_S)
            if self.run.has_deadlines or number % IDLE_TICKS == 0:
                self._happens(e.Ticked())

    def _say_of_listener(self, message: m.TO_SITE) -> None:
        is_gap = isinstance(message, m.Heartbeat) and message.index >= 0  # reports a gap in this machine's log
        if isinstance(message, OF_A_LISTENER) or is_gap:
            self._say(message)

    # --- links --------------------------------------------------------------------------------------------------

    def _admit(self, credential: Credential) -> Fault | None:
        return None if credential.covers(self.access.run) else Fault.of("E213")

    async def _serve(self, link: Connection) -> None:
        assert link.credential is not None
        await self.run.serve(link.credential.peer, link.credential.role, link)

    async def _serve_own(self, link: Connection) -> None:
        try:
            await self.run.serve(self.access.peer, Role.TRAINER, link)
        except LinkLost:
            return

    async def _dial_own(self, link: Connection) -> None:
        try:
            await self.links.serve(self.access.peer, link)
        except LinkLost:
            return


def _follow_nobody(run: RunId, listeners: tuple[m.Listener, ...]) -> None:
    """Do nothing, because the trainer itself dials listeners."""
    del run, listeners
