"""A peer's control link at the site: a session, and a post box to the host of its run. Decides nothing."""

import asyncio
import contextlib
import secrets
import time
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db.models import Q

from accounts.keys import site_key
from accounts.selectors import working_machine
from coordination import claims
from coordination.hosting import RELAYS, group_of, in_thread
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role, public_bytes
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.identifiers import ANY_RUN, RunId
from peer_agent.protocol.session import Failed, Identity, Link, Opened, Received, Session, Side
from peer_agent.protocol.wire import Frame
from runs.access import access_peer_run, require_open

HANDSHAKE_S = 10.0
SITE = "site"  # what a challenge calls this end


class AgentConsumer(AsyncWebsocketConsumer):
    """One agent or relay."""

    session: Session
    credential: Credential | None = None
    patience: asyncio.TimerHandle | None = None
    person = machine = ""

    async def connect(self) -> None:
        """Challenge whoever dials; the answer must come in time. A browser's page has nothing to say here."""
        scope: Any = self.scope
        if any(name == b"origin" for name, _ in scope["headers"]):
            await self.close()
            return
        key = site_key()
        identity = Identity(SITE, key, None, public_bytes(key))
        nonce = secrets.token_bytes(32)
        self.session = Session(Side.LISTENING, Link.CONTROL, identity, nonce=nonce, server=SITE, version="")
        self.hosts: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        await self.accept()
        self.session.start(time.time())
        await self._flush()
        self.patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._give_up)

    def _give_up(self) -> None:
        self.giving_up = asyncio.ensure_future(self._hang_up(4000))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Bytes of the peer. Text is no message of the protocol."""
        del text_data
        event = self.session.receive(bytes_data or b"", time.time())
        match event:
            case Opened(credential=Credential() as credential):
                await self._opened(credential)
            case Received(body=body):
                await self._forward(body, bytes_data or b"")
        await self._flush()
        if isinstance(event, Failed):
            await self._hang_up(4001)

    async def _opened(self, credential: Credential) -> None:
        if self.patience is not None:
            self.patience.cancel()
        fault = await in_thread(self._look_up)(credential)
        if fault is not None:
            await self._refuse(fault)
            return
        self.credential = credential
        group = RELAYS if credential.role is Role.RELAY else group_of(credential.run)
        await self.channel_layer.group_add(group, self.channel_name)
        only = None if credential.role is Role.RELAY else credential.run
        for run, (channel, fence) in (await in_thread(claims.hosts_of)(only)).items():
            self._follow(run, channel, fence)

    def _look_up(self, credential: Credential) -> Fault | None:
        try:
            machine = working_machine(credential.machine, site=settings.PUBLIC_URL)
            if credential.run != ANY_RUN:
                run = access_peer_run(Q(pk=credential.run), person=machine.person, address=credential.run)
                require_open(run)
        except Problem as problem:
            return problem.fault
        self.person, self.machine = machine.person.username, machine.name
        return None

    async def _forward(self, body: m.AnyMessage | Frame, data: bytes) -> None:
        run = getattr(body, "run", "")
        if self.credential is None or not self.credential.covers(RunId(run)):
            await self._refuse(Fault.of("E213"))
        elif run in self.hosts:
            await self.channel_layer.send(self.hosts[run], self._letter("peer.said", data=data))

    def _letter(self, kind: str, **details: Any) -> dict[str, Any]:
        assert self.credential is not None
        return {
            "type": kind,
            "peer": self.credential.peer,
            "person": self.person,
            "machine": self.machine,
            "role": self.credential.role.value,
            "channel": self.channel_name,
            **details,
        }

    async def host_announced(self, note: dict[str, Any]) -> None:
        """A run has a new host: the peer says hello to it."""
        self._follow(note["run"], note["channel"], note["fence"])
        await self._flush()

    def _follow(self, run: str, channel: str, fence: int) -> None:
        if fence > self.fences.get(run, -1):
            self.hosts[run], self.fences[run] = channel, fence
            self.session.send(m.Rehello(run=RunId(run), fence=fence))

    async def host_said(self, letter: dict[str, Any]) -> None:
        """What the coordinator says to this peer, encoded once by the host."""
        await self._say(letter["data"])

    async def machine_revoked(self, note: dict[str, Any]) -> None:
        """The machine's owner (E214) or the organizer (E308, E324) has cut it off."""
        await self._refuse(Fault.of(note["code"]))

    async def _refuse(self, fault: Fault) -> None:
        self.session.refuse(fault)
        await self._flush()
        await self._hang_up(4001)

    async def _flush(self) -> None:
        for data in self.session.outgoing():
            await self._say(data)

    # A peer that has gone meanwhile hears nothing. An error here would end this before `disconnect` tells the hosts.

    async def _say(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            await self.send(bytes_data=data)

    async def _hang_up(self, code: int) -> None:
        with contextlib.suppress(OSError):
            await self.close(code=code)

    async def disconnect(self, code: int) -> None:
        """Tell the hosts; they decide what it means."""
        del code
        if self.patience is not None:
            self.patience.cancel()
        if self.credential is None:
            return
        group = RELAYS if self.credential.role is Role.RELAY else group_of(self.credential.run)
        await self.channel_layer.group_discard(group, self.channel_name)
        for channel in self.hosts.values():
            await self.channel_layer.send(channel, self._letter("peer.lost"))
