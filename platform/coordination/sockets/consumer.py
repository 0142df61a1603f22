"""The site's end of a peer's control link. It manages the session and forwards messages to the host of the run."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, assert_never

from channels.consumer import get_handler_name
from channels.exceptions import ChannelFull, StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Q

from accounts.keys import site_key
from accounts.machine_control import forget_report, take_report
from accounts.selectors import working_machine
from config.logs import add_log_facts
from config.proxies import visitor_in
from coordination.channel_layer.messages import (
    RELAYS,
    ChannelOverflowed,
    HostAnnounced,
    HostSaid,
    HostsFound,
    LayerMessage,
    LayerRestored,
    MachineRevoked,
    PeerLost,
    PeerSaid,
    SessionContested,
    SessionReplaced,
    ToHost,
    ToSocket,
    group_of,
    sessions_of,
)
from coordination.channel_layer.process import RESTORED, site_layer
from coordination.hosts import claims
from coordination.sockets import limits
from coordination.sockets.limits import REPORTS, REST_S, Allowance, Allowances, Strangers, Takeovers, say_proved
from coordination.sockets.listening import is_dialled, placed, silenced
from coordination.sockets.polling import Following, Hosts, HostSearch, Instructing, settled
from coordination.threads import in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role, public_bytes
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.identifiers import ANY_RUN, RunId
from peer_agent.protocol.session import Failed, Identity, Link, MessageReceived, Opened, Session, Side
from peer_agent.protocol.wire import Frame, encode
from runs.access import Preparing, access_peer_run, require_open

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
SAY_S = 20.0  # seconds allowed for a socket with full buffers to accept a message
CUT_OFF = {codes.REVOKED, codes.REMOVED}
BUSY_S = 5.0  # seconds before a peer retries if the database was down
SITE = "site"  # the site's name in a challenge
TOO_LATE, REFUSED, REPLACED = 4000, 4001, 4002  # close codes

ALLOWANCES = Allowances()
STRANGERS: Strangers["AgentConsumer"] = Strangers()
TAKEOVERS = Takeovers()
LINKED: Counter[tuple[str, str]] = Counter()  # open links by machine role and program version
HOST_SEARCH = HostSearch()
INSTRUCTING = Instructing()


class AgentConsumer(AsyncWebsocketConsumer):
    session: Session
    allowance: Allowance
    reports: Allowance
    credential: Credential | None = None
    patience: asyncio.TimerHandle | None = None
    person = machine = ""
    linked_as: tuple[str, str] | None = None
    told_revision = -1
    reported_at: datetime | None = None

    async def __call__(self, *arguments: Any) -> None:
        """Serve the link. When it ends, for whatever reason, leave all groups and tell the hosts."""
        self.layer = site_layer()
        self.following = Following()
        self.is_over = False
        try:
            await super().__call__(*arguments)
        finally:
            await self._leave()
            self.layer.forget(self.channel_name)

    async def dispatch(self, message: dict[str, Any] | LayerMessage) -> None:
        """Handle a server event or another process's message, without Channels' cleanup of database connections."""
        if isinstance(message, dict):
            await getattr(self, get_handler_name(message))(message)
        elif isinstance(message, ToSocket):
            await self._heard(message)
        else:
            log.warning("a socket was sent what is for others: %s", type(message).__name__)

    async def _heard(self, message: ToSocket) -> None:
        match message:
            case HostSaid():
                await self._host_said(message)
            case HostAnnounced():
                await self._host_announced(message)
            case HostsFound(runs=runs):
                await self._ask_for_hello(runs)
            case LayerRestored():
                await self._layer_restored()
            case SessionReplaced(by=newer):
                await self._replaced(newer)
            case SessionContested():
                await self._contested()
            case MachineRevoked():
                await self._revoked(message)
            case ChannelOverflowed():
                await self._overflowed()
            case _:
                assert_never(message)

    async def connect(self) -> None:
        """Send a challenge, which the peer must answer within `HANDSHAKE_S`. Close links opened by a browser page."""
        scope: Any = self.scope
        if any(name == b"origin" for name, _ in scope["headers"]):
            await self.close()
            return
        key = site_key()
        identity = Identity(SITE, key, None, public_bytes(key))
        nonce = secrets.token_bytes(32)
        self.session = Session(Side.LISTENING, Link.CONTROL, identity, nonce=nonce, server=SITE, version="")
        await self.accept()
        self.session.start(time.time())
        await self._flush()
        self.patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.give_up)
        if (oldest := STRANGERS.enter(self)) is not None:
            oldest.give_up()

    def give_up(self) -> None:
        """Close a link whose peer has not authenticated in time, or the oldest such link if there are too many."""
        self.giving_up = asyncio.ensure_future(self._hang_up(TOO_LATE))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Handle bytes from the peer. Ignore text, which the protocol does not use."""
        del text_data
        data = bytes_data or b""
        if self.credential is not None and not self.allowance.spend(len(data), time.monotonic()):
            await self._refuse(Fault.of("E370", limit=self.allowance.budget), REST_S)
            return
        event = self.session.receive(data, time.time())
        match event:
            case Opened(credential=Credential() as credential):
                await self._opened(credential)
            case MessageReceived(body=body):
                await self._forward(body, data)
        await self._flush()
        if isinstance(event, Failed):
            await self._hang_up(REFUSED)

    async def _opened(self, credential: Credential) -> None:
        self._is_known()
        scope: Any = self.scope
        say_proved(scope, f"{credential.peer} {credential.run}")
        try:
            problem = await in_thread(self._look_up)(credential)
            hosts = await in_thread(claims.hosts_of)(None if credential.role is Role.RELAY else credential.run)
            notes = await in_thread(settled)() if credential.role is Role.RELAY else []
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
            await self._refuse(Fault.of("E374"), BUSY_S)
            return
        if problem is not None:
            await self._refuse(problem.fault, problem.retry_after_s if isinstance(problem, Preparing) else -1.0)
            return
        self.credential = credential
        add_log_facts(run_id=credential.run, peer=credential.peer)
        self.linked_as = credential.role.value, self.session.peer_version
        LINKED[self.linked_as] += 1
        self.reports = Allowance(REPORTS, time.monotonic())
        self.allowance = ALLOWANCES.of(credential.peer, credential.run, credential.role, time.monotonic())
        await self._join(credential)
        await self.find(hosts, time.monotonic())
        for note in notes:
            self.session.send(note)

    def _is_known(self) -> None:
        STRANGERS.leave(self)
        if self.patience is not None:
            self.patience.cancel()

    def _look_up(self, credential: Credential) -> Problem | None:
        try:
            machine = working_machine(credential.machine, site=settings.PUBLIC_URL)
            if credential.run != ANY_RUN:
                run = access_peer_run(Q(pk=credential.run), person=machine.person, address=credential.run)
                require_open(run)
        except Problem as problem:
            return problem
        self.person, self.machine = machine.person.username, machine.name
        return None

    async def _join(self, credential: Credential) -> None:
        """Add this socket to its channel groups, and tell any older socket of the machine in the run to close."""
        sessions = sessions_of(credential.peer, credential.run)
        for group in (RESTORED, sessions, RELAYS if credential.role is Role.RELAY else group_of(credential.run)):
            await self.layer.group_add(group, self.channel_name)
        HOST_SEARCH.add(self)
        await self.layer.group_send(sessions, SessionReplaced(self.channel_name))

    async def _replaced(self, newer: str) -> None:
        """Close this socket in favor of a newer one. If two agents keep replacing each other, refuse both with E131."""
        if self.credential is None or self.is_over or newer == self.channel_name:
            return
        if TAKEOVERS.count(self.credential.peer, self.credential.run, time.monotonic()):
            with contextlib.suppress(ChannelFull):
                await self.layer.send(newer, SessionContested())
            await self._contested()
        else:
            await self._hang_up(REPLACED)
        await self._leave()  # so that no other socket replaces it again

    async def _contested(self) -> None:
        await self._refuse(Fault.of("E131"), limits.REST_S)

    # Messages to the host

    async def _forward(self, body: m.AnyMessage | Frame, data: bytes) -> None:
        run = getattr(body, "run", "")
        if self.credential is None or not self.credential.covers(RunId(run)):
            await self._refuse(Fault.of("E213"))
        elif isinstance(body, m.MachineReport):
            await self._report(self.credential, body)
        elif run not in self.following.hosts:
            HOST_SEARCH.wake()
        else:
            if isinstance(body, m.Hello):
                self.following.said_hello(run, time.monotonic())
                data = self._placed(body, data)
            await self._post(run, self._said(self.credential, data))

    async def _report(self, known: Credential, report: m.MachineReport) -> None:
        """Store a machine's report for its owner. Drop reports beyond the rate limit; the machine repeats them."""
        if not self.reports.spend(0, time.monotonic()):
            return
        try:
            problem = await in_thread(self._look_up)(known) if report.why else None  # no host checks idle machines
            if problem is not None and problem.fault.code in CUT_OFF:
                await self._refuse(problem.fault)
                return
            take, is_first = in_thread(take_report), self.reported_at is None
            wanted, self.reported_at = await take(machine_id=known.machine, report=report, is_first=is_first)
        except DatabaseError:
            log.warning("the database is away", exc_info=True)
            return
        INSTRUCTING.add(known.peer, self)
        if report.revision < wanted.revision:
            self.told_revision = wanted.revision
            self.session.send(wanted)

    async def _forget_report(self, known: Credential) -> None:
        """Mark the machine as disconnected. Its report is valid only while it is connected."""
        if self.reported_at is not None:
            with contextlib.suppress(DatabaseError):
                await in_thread(forget_report)(machine_id=known.machine, at=self.reported_at)

    async def instruct(self, wanted: m.Instructions) -> None:
        """Send the owner's new instructions to this socket's own channel, because another task calls this method."""
        if wanted.revision > self.told_revision:
            self.told_revision = wanted.revision
            with contextlib.suppress(ChannelFull):
                await self.layer.send(self.channel_name, HostSaid(encode(wanted)))

    def _placed(self, hello: m.Hello, data: bytes) -> bytes:
        """Return the hello with the peer's address as the site sees it. A relay keeps the address that it gave.

        If the address cannot be reached, notify the peer and remove the address from the hello.
        """
        if self.credential is None or self.credential.role is Role.RELAY or not is_dialled(hello):
            return data
        scope: Any = self.scope
        try:
            return encode(placed(hello, visitor_in(scope)))
        except Problem as problem:
            self.session.send(m.Notice(run=hello.run, code=problem.fault.code, text=problem.fault.text))
            return encode(silenced(hello))

    async def _post(self, run: str, message: ToHost) -> None:
        """Forward a message to the host. If that fails, drop the message and look up the host again."""
        try:
            await self.layer.send(self.following.hosts[run], message)
        except ChannelFull:
            self.following.unfollow(run)
            HOST_SEARCH.wake()

    def _said(self, known: Credential, data: bytes) -> PeerSaid:
        return PeerSaid(known.peer, self.channel_name, data, self.person, self.machine, known.role)

    # The host of each run

    async def _host_announced(self, note: HostAnnounced) -> None:
        """Follow the announced host. If it is new or may have lost messages, ask the peer for a hello."""
        if self.following.follow(note.run, note.channel, note.fence, time.monotonic(), again=note.again):
            await self._ask_for_hello([note.run])

    async def _layer_restored(self) -> None:
        """Look up hosts and ask the peer for hellos, since messages to and from this process may have been lost."""
        HOST_SEARCH.wake()
        await self._ask_for_hello(list(self.following.hosts))

    async def find(self, hosts: Hosts, asked_at: float) -> None:
        """Compare the hosts that this socket follows with those in the database.

        Another task calls this method. It therefore reports new hosts through this socket's own channel.
        """
        mine = {run: host for run, host in hosts.items() if self.credential and self.credential.covers(RunId(run))}
        runs = self.following.look(mine, asked_at, time.monotonic())
        if runs:
            with contextlib.suppress(ChannelFull):
                await self.layer.send(self.channel_name, HostsFound(runs))

    async def announce_finished(self, notes: Sequence[m.Snapshotted]) -> None:
        """Tell a relay which runs are finished, so that it may delete their data. Another task calls this method."""
        if self.credential is not None and self.credential.role is Role.RELAY:
            for note in notes:
                with contextlib.suppress(ChannelFull):
                    await self.layer.send(self.channel_name, HostSaid(encode(note)))

    async def _ask_for_hello(self, runs: list[str]) -> None:
        for run in runs:
            self.session.send(m.Rehello(run=RunId(run), fence=self.following.fences[run]))
        await self._flush()

    # Messages to the peer

    async def _host_said(self, message: HostSaid) -> None:
        self.following.answered(message.run)
        await self._say(message.data)

    async def _revoked(self, note: MachineRevoked) -> None:
        """Close the link on behalf of the owner (E214), the organizer (E308, E324) or a quarantine (E371)."""
        await self._refuse(Fault.of(note.code), note.retry_after_s)

    async def _overflowed(self) -> None:
        """Close the link, because messages were lost when its queue overflowed. The next hello makes up for them."""
        await self._refuse(Fault.of("E373", reason="too many messages were waiting for it"), 0.0)

    async def _refuse(self, fault: Fault, retry_after_s: float = -1.0) -> None:
        self.session.refuse(fault, retry_after_s)
        await self._flush()
        await self._hang_up(REFUSED)

    async def _flush(self) -> None:
        for data in self.session.outgoing():
            await self._say(data)

    # A disconnected peer receives nothing. Suppress the error, which would end this task before `disconnect` tells the
    # hosts.

    async def _say(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(SAY_S):
                with contextlib.suppress(OSError):
                    await self.send(bytes_data=data)
        except TimeoutError:
            raise StopConsumer from None  # the peer does not read, so no message can reach it

    async def _hang_up(self, code: int) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(SAY_S):
                await self.close(code=code)

    async def disconnect(self, code: int) -> None:
        del code
        await self._leave()

    async def _leave(self) -> None:
        """Leave the run and tell its hosts, which decide what happens next. Repeated calls do nothing."""
        if self.is_over:
            return
        self.is_over = True
        self._is_known()
        HOST_SEARCH.discard(self)
        if self.linked_as is not None:
            LINKED[self.linked_as] -= 1
            if not LINKED[self.linked_as]:
                del LINKED[self.linked_as]
        if self.credential is not None:
            INSTRUCTING.discard(self.credential.peer, self)
            for run in list(self.following.hosts):
                await self._post(run, PeerLost(self.credential.peer, self.channel_name))
            await self._forget_report(self.credential)
