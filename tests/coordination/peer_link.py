"""A peer's end of a control link, without the network: an agent's session in front of the site's consumer."""

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
    """The site closed the socket; `code` as in RFC 6455."""

    def __init__(self, code: int) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


def credential_of(owner: Owned, run: Run | None, role: Role = Role.TRAINER) -> Credential:
    """What the site vouches for now."""
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
    """The end of a machine; `issued_by` somebody else, or holding another key, it is a liar."""
    site = site_key()
    return Identity(credential.machine, holds, issue(issued_by or site, credential), public_bytes(site))


class PeerLink:
    """Dials the site; `hear` gives what is said after the handshake."""

    def __init__(self, identity: Identity, **headers: str) -> None:
        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.proved: list[str] = []  # whose link the server was told it is
        scope: dict[str, Any] = {"type": "websocket", "path": "/ws/agents/", "headers": named, "subprotocols": []}
        scope["client"] = ("203.0.113.7", 50000)
        scope["extensions"] = {PROVED: self.proved.append}
        self.wire: Any = communicator(AgentConsumer.as_asgi(), scope)
        self.session = Session(
            Side.DIALLING, Link.CONTROL, identity, nonce=secrets.token_bytes(32), server=SITE, version="1"
        )
        self.is_over = False

    async def dial(self) -> None:
        """The socket alone; the challenge is on its way. Raises Closed where the site does not take it."""
        await self.wire.send_input({"type": "websocket.connect"})
        output = await self._output()
        if output["type"] == "websocket.close":
            self.is_over = True
            raise Closed(output.get("code", 1006))
        assert output["type"] == "websocket.accept"

    async def open(self) -> Event:
        """The whole handshake: Opened, or Failed with why not."""
        await self.dial()
        while (event := await self.next_event()) is None:
            pass
        return event

    async def next_event(self) -> Event | None:
        """The next message of the site, through the session, and the session's answers back. Raises Closed."""
        event = self.session.receive(await self.bytes_from_site(), time.time())
        for data in self.session.outgoing():
            await self.send(data)
        return event

    async def bytes_from_site(self) -> bytes:
        """One binary message. Raises Closed."""
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
        """Bytes as they are."""
        await self.wire.send_input({"type": "websocket.receive", "bytes": data})

    async def say(self, message: m.Message) -> None:
        """A message, whether it is allowed or not."""
        await self.send(encode(message))

    async def hear(self) -> m.AnyMessage | Failed:
        """The next message, or the refusal. Raises Closed."""
        while True:
            match await self.next_event():
                case MessageReceived(body=body):
                    return body  # type: ignore[return-value]  # no frames on a control link
                case Failed() as failed:
                    return failed

    async def how_it_ends(self) -> tuple[str, int]:
        """Number of the refusal and code of the close."""
        answer = await self.hear()
        assert isinstance(answer, Failed), answer
        try:
            await self.bytes_from_site()
        except Closed as closed:
            return answer.fault.code, closed.code
        raise AssertionError("it said more after a refusal")

    async def leave(self) -> None:
        """The socket is gone."""
        self.is_over = True
        await self.wire.send_input({"type": "websocket.disconnect", "code": 1006})
        await self.wire.wait(PATIENCE_S)


@asynccontextmanager
async def connecting(identity: Identity, **headers: str) -> AsyncIterator[PeerLink]:
    """A link that was not asked for yet; its socket ends with the block."""
    link = PeerLink(identity, **headers)
    try:
        yield link
    finally:
        await link.leave()


@asynccontextmanager
async def linked(identity: Identity) -> AsyncIterator[PeerLink]:
    """An open link."""
    async with connecting(identity) as link:
        assert isinstance(event := await link.open(), Opened), event
        yield link


def changed(identity: Identity, **changes: Any) -> Identity:
    """The same machine with something else in its credential, signed by the site all the same."""
    assert identity.credential is not None
    credential = msgspec.msgpack.decode(identity.credential.payload, type=Credential)
    return identity_of(msgspec.structs.replace(credential, **changes), identity.key)
