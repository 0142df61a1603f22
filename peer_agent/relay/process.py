"""The process that averages and stores logs, for one run or for all of a site's runs. Other machines dial it."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random

from msgspec import Struct

from peer_agent.averaging.codecs import INLINE_BYTES
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.machine.home import Home
from peer_agent.network.addresses import bracketed
from peer_agent.network.certificate import Certificate
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, heals, keep
from peer_agent.network.relay_server import Server, serve_data
from peer_agent.network.uplink import UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.identifiers import ANY_RUN, PeerId, RunId
from peer_agent.protocol.messages import MAX_HANDSHAKE
from peer_agent.protocol.relay import events as e
from peer_agent.protocol.relay.opened import open_message, run_of
from peer_agent.protocol.wire import Frame
from peer_agent.relay.forwarding import Forwarder
from peer_agent.relay.run import Around, RelayedRun
from peer_agent.site.credential import RunAccess
from peer_agent.site.relay_links import DataLinks

log = logging.getLogger(__name__)

TICK_S = 0.1  # seconds between ticks of runs whose chunks close at deadlines
IDLE_TICKS = 5  # a run without deadlines ticks once every this many ticks
RENEW_S = 60.0  # seconds between checks of the credential's age
SAID_WAITING = 4096  # Most messages queued for the site. Any more are dropped; important ones are repeated.


def _nothing(_: object) -> None:
    """Ignore a report, because no callback was given."""


class Watch(Struct, frozen=True):
    """Callbacks that report what happens in the process.

    `linked`: the link to the site has changed its state. `heard`: the site has sent a message. `listens`: the process
    listens at this port. `opened`: a link to the site is ready to use. `instructed`: the machine's owner has sent
    instructions.
    """

    linked: Callable[[Connected | Waiting], None] = _nothing
    heard: Callable[[m.TO_PEER], None] = _nothing
    listens: Callable[[int], None] = _nothing
    opened: Callable[[], None] = lambda: None
    instructed: Callable[[m.Instructions], None] = _nothing


class Relay:
    """The process of a relay or auxiliary. `certificate`: needed unless a proxy encrypts for this process."""

    def __init__(
        self,
        home: Home,
        access: RunAccess,
        *,
        host: str,
        port: int,
        advertise: str,
        certificate: Certificate | None = None,
        watch: Watch | None = None,
        reserve_percent: int = 0,
        keep_bytes: int = 0,
        handed_over: socket.socket | None = None,
    ) -> None:
        """Prepare the process. `reserve_percent`: the percentage of upload bandwidth to leave free; 0 for a relay.

        `keep_bytes`: how many bytes of each run's averages to keep after they are no longer needed
        (`UpdateLog.forget`). `handed_over`: the socket over which the site passes connections on to this process. The
        process then listens on no port.
        """
        self.handed_over = handed_over
        self.home, self.access, self.certificate = home, access, certificate
        self.host, self.port, self.url = host, port, advertise
        self.watch, self.reserve_percent = watch or Watch(linked=_told), reserve_percent
        self.is_of_all_runs = access.role is Role.RELAY
        self.log = UpdateLog(home.folder / "log", access.site_key, keep_bytes)
        self.runs: dict[RunId, RelayedRun] = {}
        self.aside: dict[RunId, tuple[int, Fault]] = {}  # runs that cannot continue on this machine: the fence, and why
        self.others = DataLinks(access, self._hear_listener, is_busy=self._is_busy)
        self.forwarder = Forwarder(self._forwards_to)
        self._around = Around(self.say, self.others.ask, self._follow, self._set_aside)
        self._addresses: dict[RunId, tuple[m.Listener, ...]] = {}
        self._said: asyncio.Queue[m.Message] = asyncio.Queue(SAID_WAITING)
        self._closing: set[asyncio.Task[None]] = set()
        # Faults of this machine that occurred while it was serving others
        self._broken: asyncio.Queue[Problem] = asyncio.Queue()

    async def run(self) -> None:
        """Listen and keep a link to the site until cancelled. Raises Problem, or an exception group, on a permanent
        error.
        """
        await self.access.renew()
        server = await serve_data(
            self.host,
            self.port,
            identity_of=self.access.identity,
            handle=self._serve,
            admit=self._admit,
            message_bytes=MAX_HANDSHAKE,
            certificate=self.certificate,
            forward=self.forwarder.serve if self.is_of_all_runs else None,
            handed_over=self.handed_over,
        )
        self.url = self.url or f"{'wss' if self.certificate else 'ws'}://{bracketed(self.host)}:{server.port}/"
        log.info("listening at %s", self.url)
        self.watch.listens(server.port if self.handed_over is None else 0)
        control = keep(self.access.dial_control, self._hear_site, on_state=self.watch.linked, random=Random())
        async with asyncio.TaskGroup() as tasks:
            for part in (control, self._tick(), self._renew(), self._break(), self._close_at_the_end(server)):
                tasks.create_task(part)

    async def _close_at_the_end(self, server: Server) -> None:
        """Wait until the process ends, then close all links at once. Closing them one by one would take too long."""
        try:
            await asyncio.Event().wait()
        finally:
            UPLINK.pace(0.0)
            await asyncio.gather(self.others.close(), server.close(), *(run.close() for run in self.runs.values()))

    def _admit(self, credential: Credential) -> Fault | None:
        if credential.run in self.aside:
            return self.aside[credential.run][1]
        is_strange = credential.role is not Role.RELAY and credential.run == ANY_RUN
        return Fault.of("E213") if is_strange or not self._serves(credential.run) else None

    def _serves(self, run: RunId) -> bool:
        return self.is_of_all_runs or run in (self.access.run, ANY_RUN)

    # --- control link -------------------------------------------------------------------------------------------

    async def _hear_site(self, link: Connection) -> None:
        while not self._said.empty():
            self._said.get_nowait()  # a message is dropped along with the link that it was queued for
        speaking = asyncio.create_task(self._speak(link))
        self.watch.opened()
        try:
            while True:
                body = await link.receive()
                if isinstance(body, m.TO_PEER):
                    await self._take(body)
                elif isinstance(body, m.Instructions):
                    self.watch.instructed(body)
        finally:
            speaking.cancel()
            for run in list(self.runs):
                await self._guarded(run, lambda run: run.handle(e.ControlLost()))

    async def _speak(self, link: Connection) -> None:
        while True:
            try:
                await link.send(await self._said.get())
            except (LinkLost, Refused):
                return  # the link's reader handles the error

    def say(self, message: m.TO_SITE | m.OF_MACHINE) -> None:
        """Queue a message to the coordinator, or drop it if the queue is full."""
        if not self._said.full():
            self._said.put_nowait(message)

    def run_of(self, run: RunId) -> RelayedRun:
        if run not in self.runs:
            self.runs[run] = RelayedRun(
                run,
                self.access.peer,
                self.log,
                self._around,
                url=self.url,
                fingerprint=self.certificate.fingerprint if self.certificate is not None else "",
                reserve_percent=self.reserve_percent,
            )
        return self.runs[run]

    async def _take(self, body: m.TO_PEER) -> None:
        """Handle a message from the site. An error affects only the message's run."""
        try:
            run = run_of(body)
        except Problem as problem:
            log.warning("site: %s", problem)
            return
        if not self._serves(run) or self._is_aside(run, body) or self._has_nothing(run, body):
            return
        await self._guarded(run, lambda relayed: self._hear(relayed, body))
        self.watch.heard(body)

    async def _hear(self, run: RelayedRun, body: m.TO_PEER) -> None:
        """Verify a message and pass it to its run. Skip an invalid message, but raise Problem for an invalid commit."""
        large = isinstance(body, m.Planned | m.Commit) and _size(body) > INLINE_BYTES
        try:
            opened = await asyncio.to_thread(open_message, body, self.access.site_key) if large else None
            opened = opened or open_message(body, self.access.site_key)
        except Problem as problem:
            if isinstance(body, m.Commit):
                raise
            log.warning("run %s: %s", run.run, problem)
            return
        if isinstance(opened, m.Probe):
            run.probe(opened)
        if isinstance(opened, m.Uplink):
            UPLINK.pace(opened.bytes_per_s)
        await run.handle(e.Heard(opened))

    def _is_aside(self, run: RunId, body: m.TO_PEER) -> bool:
        """Return True if the run is set aside. If a newer host asks for a hello, the run becomes active again."""
        if run in self.aside and isinstance(body, m.Rehello) and body.fence > self.aside[run][0]:
            del self.aside[run]
        return run in self.aside

    def _has_nothing(self, run: RunId, body: m.TO_PEER) -> bool:
        """Return True for a snapshot notice about a run without data on this machine.

        The site sends such a notice for every finished run.
        """
        return isinstance(body, m.Snapshotted) and run not in self.runs and not self.log.last_index(run)

    async def _guarded(self, run: RunId, do: Callable[[RelayedRun], Awaitable[None]]) -> None:
        """Call `do` with a run. If it fails, set aside only this run."""
        try:
            await do(self.run_of(run))
        except Exception as error:  # noqa: BLE001 (an error sets this run aside, and other runs go on)
            self._set_aside(run, error)

    def _set_aside(self, run: RunId, error: Exception) -> None:
        """Close a run that cannot continue on this machine, and send its peers the reason.

        If the disk is full, end the whole process instead. A process that serves only this run ends as well.
        """
        if isinstance(error, Problem) and error.fault.code == codes.DISK_FULL:
            self._broken.put_nowait(error)
            return
        relayed = self.runs.pop(run, None)
        if relayed is None:
            return
        fault = error.fault if isinstance(error, Problem) else Fault.of("E408", run=run[:8], reason=repr(error))
        self.aside[run] = relayed.state.fence, fault
        if not self.is_of_all_runs:
            self._broken.put_nowait(Problem(fault))  # this process has no other run
        log.error("run %s is set aside until its host changes: %s", run, fault, exc_info=error)
        self.say(m.Leave(run=run))
        closing = asyncio.create_task(relayed.close(fault))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _follow(self, run: RunId, relays: tuple[m.Listener, ...]) -> None:
        """Store a run's relays.

        Keep links to the relays of all runs, because a site's relays join its runs one by one.
        """
        self._addresses[run] = relays
        self.others.follow(tuple(sorted({relay for of in self._addresses.values() for relay in of}, key=repr)))

    def _is_busy(self) -> bool:
        return any(run.reduction is not None for run in self.runs.values())

    def _forwards_to(self, run: RunId, peer: PeerId) -> m.Listener | None:
        """Return a run's member to which this relay may forward links, or None.

        The coordinator must list the member, and this relay must have a direct, authenticated link to it.
        """
        listed = (listener for listener in self._addresses.get(run, ()) if listener.peer == peer)
        return next((each for each in listed if each.fingerprint and peer in self.others.direct), None)

    async def _tick(self) -> None:
        for number in count():
            await asyncio.sleep(TICK_S)
            for run, relayed in list(self.runs.items()):
                if relayed.has_deadlines or number % IDLE_TICKS == 0:
                    await self._guarded(run, self._look)

    async def _look(self, relayed: RelayedRun) -> None:
        """Tell a run which of its listeners this process can reach directly, and that time has passed."""
        listening = {listener.peer for listener in self._addresses.get(relayed.run, ())}
        await relayed.handle(e.Reached(tuple(sorted(listening & self.others.direct))))
        await relayed.handle(e.Ticked())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self.access.renew()
            except Problem as problem:
                if not heals(problem.fault):
                    raise
                log.warning("%s", problem)

    async def _break(self) -> None:
        raise await self._broken.get()

    # --- data links ---------------------------------------------------------------------------------------------

    async def _serve(self, link: Connection) -> None:
        """Serve one data link. An error closes only this link."""
        try:
            await self._give_and_take(link)
        except Problem as problem:
            if problem.fault.code == codes.DISK_FULL:
                self._broken.put_nowait(problem)
            log.warning("%s", problem)
            await link.close(problem.fault)

    async def _give_and_take(self, link: Connection) -> None:
        """Serve a data link.

        It belongs to one run if it is a trainer's, or if this process is an auxiliary. On a relay, other relays and the
        site's reader may fetch from the log of any run that their credential covers.
        """
        assert link.credential is not None
        peer, role, run = link.credential.peer, link.credential.role, link.credential.run
        if role is Role.TRAINER or not self.is_of_all_runs:
            await self.run_of(run if self.is_of_all_runs else self.access.run).serve(peer, role, link)
            return
        while True:
            body = await link.receive()
            if isinstance(body, m.FetchSpan | m.FetchRecords) and link.credential.covers(body.run):
                await self._give(link, body, is_reader=link.credential.role is Role.READER)

    async def _give(self, link: Connection, body: m.FetchSpan | m.FetchRecords, *, is_reader: bool) -> None:
        """Send part of a run's log. For the site's reader, open the log even if the run has no host."""
        run = self.run_of(body.run) if is_reader else self.runs.get(body.run)
        if isinstance(body, m.FetchRecords):
            if run is not None:
                await run.give_records(link, body.first)
        elif run is not None:
            await run.give_span(link, body.index, body.span)
        else:
            await link.send(m.SpanMissing(run=body.run, index=body.index, span=body.span))

    async def _hear_listener(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        """Handle an average from a member that this machine has dialled.

        Averages from relays are fetched from their logs instead.
        """
        if isinstance(body, Frame) and body.run in self.runs:
            await self._guarded(body.run, lambda run: run.hear_average(peer, body))


def _size(body: m.Planned | m.Commit) -> int:
    return len(body.plan.payload if isinstance(body, m.Planned) else body.record.payload)


def _told(state: Connected | Waiting) -> None:
    if isinstance(state, Connected):
        log.info("site: connected")
    else:
        log.info("site: %s; again in %.1f s", state.fault, state.delay_s)
