"""A peer's end of a control link without a network: an agent's session, connected directly to the site's consumer."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from asgiref.testing import ApplicationCommunicator
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accounts.keys import site_key
from coordination.sockets.consumer import SITE, AgentConsumer
from coordination.sockets.limits import PROVED
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role, issue, public_bytes
from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.session import Event, Failed, Identity, Link, MessageReceived, Opened, Session, Side
from peer_agent.protocol.wire import encode
from runs.models import Run
from tests.coordination.engines import PATIENCE_S
from tests.runs.factories import Owned

communicator: Any = ApplicationCommunicator  # asgiref's testing module has no types


class Closed(Exception):
    """Raised when the site closes the socket. `code` is a WebSocket close code (RFC 6455)."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


def credential_of(owner: Owned, run: Run | None, role: Role = Role.TRAINER) -> Credential:
    return Credential(
        person=owner.machine.person.username,
        machine=owner.machine.peer_id,
        run=run.run_id if run else RunId("*"),
        role=role,
        key=public_bytes(owner.key),
        not_before=int(time.time()) - 5,
        expires=int(time.time()) + 600,
    )


def identity_of(
    credential: Credential, holds: Ed25519PrivateKey, issued_by: Ed25519PrivateKey | None = None
) -> Identity:
    """Return a machine's identity. It is a forgery if `issued_by` is not the site's key, or if `holds` is not the
    credential's key.
    """
    site = site_key()
    return Identity(credential.machine, holds, issue(issued_by or site, credential), public_bytes(site))


class PeerLink:
    """A peer's link to the site. `hear` returns what the site sends after the handshake."""

    def __init__(self, identity: Identity, **headers: str) -> None:
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.proved: list[str] = []  # the machine ids that the consumer reported to the server as proved
        scope: dict[str, Any] = {"type": "websocket", "path": "/ws/agents/", "headers": named, "subprotocols": []}
        scope["client"] = ("203.0.113.7", 50000)
        scope["extensions"] = {PROVED: self.proved.append}
        self.wire: Any = communicator(AgentConsumer.as_asgi(), scope)
        self.session = Session(
            Side.DIALLING, Link.CONTROL, identity, nonce=secrets.token_bytes(32), server=SITE, version="1"
        )
        self.is_over = False

    async def dial(self) -> None:
        """Open the socket without the handshake. Raise Closed if the site does not accept the socket."""
        await self.wire.send_input({"type": "websocket.connect"})
        output = await self._output()
        if output["type"] == "websocket.close":
            self.is_over = True
            raise Closed(output.get("code", 1006))
        assert output["type"] == "websocket.accept"

    async def open(self) -> Event:
        await self.dial()
        while (event := await self.next_event()) is None:
            pass
        return event

    async def next_event(self) -> Event | None:
        """Pass the site's next message to the session and send its answers. Raise Closed if the socket closes."""
        event = self.session.receive(await self.bytes_from_site(), time.time())
        for data in self.session.outgoing():
            await self.send(data)
        return event

    async def bytes_from_site(self) -> bytes:
        """Return the site's next binary message. Raise Closed if the socket closes."""
        output = await self._output()
        if output["type"] == "websocket.close":
            self.is_over = True
            raise Closed(output["code"])
        data: bytes = output["bytes"]
        return data

    async def _output(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            output: dict[str, Any] = await self.wire.receive_output(PATIENCE_S)
            return output

    async def send(self, data: bytes) -> None:
        await self.wire.send_input({"type": "websocket.receive", "bytes": data})

    async def say(self, message: m.Message) -> None:
        await self.send(encode(message))

    async def hear(self) -> m.AnyMessage | Failed:
        while True:
            match await self.next_event():
                case MessageReceived(body=body):
                    return body  # type: ignore[return-value]  # no frames on a control link
                case Failed() as failed:
                    return failed

    async def how_it_ends(self) -> tuple[str, int]:
        answer = await self.hear()
        assert isinstance(answer, Failed), answer
        try:
            await self.bytes_from_site()
        except Closed as closed:
            return answer.fault.code, closed.code
        raise AssertionError("it said more after a refusal")

    async def leave(self) -> None:
        self.is_over = True
        await self.wire.send_input({"type": "websocket.disconnect", "code": 1006})
        await self.wire.wait(PATIENCE_S)


@asynccontextmanager
async def connecting(identity: Identity, **headers: str) -> AsyncIterator[PeerLink]:
    link = PeerLink(identity, **headers)
    try:
        yield link
    finally:
        await link.leave()


@asynccontextmanager
async def linked(identity: Identity) -> AsyncIterator[PeerLink]:
    async with connecting(identity) as link:
        assert isinstance(event := await link.open(), Opened), event
        yield link


def changed(identity: Identity, **changes: Any) -> Identity:
    """Return this machine's identity with a changed credential, signed by the site."""
    assert identity.credential is not None
    credential = msgspec.msgpack.decode(identity.credential.payload, type=Credential)
    return identity_of(msgspec.structs.replace(credential, **changes), identity.key)
