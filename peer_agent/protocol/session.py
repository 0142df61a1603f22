"""One end of a link, without I/O (sans-I/O). It takes received bytes, and returns events and bytes to send.

The same class serves control, data and forward links, at both ends. Bad input never raises an exception. Instead, the
session sends a numbered refusal and closes. `RECEIVABLE` lists the messages that each side may receive in each phase.

Handshake: the listening side sends a nonce. The dialing side answers with its credential, a nonce of its own, and a
signature over (server name, both nonces, certificate fingerprint). The listening side replies with its own signature.
Because the server's name is signed, a relay cannot pass on a challenge from another server. Because the fingerprint of
the listener's self-signed certificate is signed, the link cannot be intercepted.
"""

from enum import StrEnum
from typing import get_args

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import (
    CLOCK_TOLERANCE_S,
    LINK,
    Credential,
    Role,
    Signed,
    is_signed_by,
    sign,
    verify,
)
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.identifiers import ANY_RUN, RunId
from peer_agent.protocol.wire import Frame, Kind, Malformed, decode, encode, encode_frame

LISTENING_ROLES = frozenset({Role.RELAY, Role.AUXILIARY, Role.TRAINER})


class Link(StrEnum):
    CONTROL = "control"
    DATA = "data"
    FORWARD = "forward"  # through a relay, to a listener that peers cannot dial directly


class Side(StrEnum):
    LISTENING = "listening"
    DIALLING = "dialling"


class SessionPhase(StrEnum):
    AWAITING_CHALLENGE = "awaiting challenge"
    AWAITING_PROOF = "awaiting proof"
    AWAITING_WELCOME = "awaiting welcome"
    OPEN = "open"
    CLOSED = "closed"


def _types(union: object) -> frozenset[type]:
    return frozenset(get_args(union))


RECEIVABLE: dict[tuple[Side, Link, SessionPhase], frozenset[type]] = {
    **{(Side.DIALLING, link, SessionPhase.AWAITING_CHALLENGE): frozenset({m.Challenge, m.Refusal}) for link in Link},
    **{(Side.DIALLING, link, SessionPhase.AWAITING_WELCOME): frozenset({m.Welcome, m.Refusal}) for link in Link},
    **{(Side.LISTENING, link, SessionPhase.AWAITING_PROOF): frozenset({m.Authenticate, m.Refusal}) for link in Link},
    (Side.LISTENING, Link.CONTROL, SessionPhase.OPEN): _types(m.TO_SITE) | {m.OF_MACHINE, m.Refusal},
    (Side.DIALLING, Link.CONTROL, SessionPhase.OPEN): _types(m.TO_PEER) | {m.TO_MACHINE, m.Refusal},
    (Side.LISTENING, Link.DATA, SessionPhase.OPEN): _types(m.TO_RELAY) | {m.Refusal},
    (Side.DIALLING, Link.DATA, SessionPhase.OPEN): _types(m.FROM_RELAY) | {m.Refusal},
    (Side.LISTENING, Link.FORWARD, SessionPhase.OPEN): frozenset({m.Forward, m.Refusal}),
    (Side.DIALLING, Link.FORWARD, SessionPhase.OPEN): frozenset({m.Forwarding, m.Refusal}),
}
FRAMES: dict[tuple[Side, Link], frozenset[Kind]] = {
    (Side.LISTENING, Link.DATA): frozenset({Kind.GRADIENT, Kind.PROBE}),
    (Side.DIALLING, Link.DATA): frozenset({Kind.AVERAGE, Kind.PROBE}),
    (Side.LISTENING, Link.FORWARD): frozenset({Kind.FORWARDED}),
    (Side.DIALLING, Link.FORWARD): frozenset({Kind.FORWARDED}),
}


class Opened(Struct, frozen=True):
    """The handshake has succeeded.

    `credential`: the other side's, or None if it is the site. `offset_s`: the other side's clock minus ours.
    """

    credential: Credential | None
    offset_s: float


class MessageReceived(Struct, frozen=True):
    """A message or frame that the other side is allowed to send in this phase."""

    body: m.AnyMessage | Frame


class Failed(Struct, frozen=True):
    """The session has failed.

    If `remote`, the other side refused us. Otherwise, this side refuses, and the caller must send `outgoing()`.
    """

    fault: Fault
    remote: bool
    retry_after_s: float = -1.0


Event = Opened | MessageReceived | Failed


class Identity(Struct, frozen=True):
    """One end's identity: its name, key, credential (None for the site), and the site's public key."""

    name: str
    key: Ed25519PrivateKey
    credential: Signed | None
    site_key: bytes


class Session:
    """One end of one link. The caller passes in `now` (UTC seconds) and `nonce` (32 fresh random bytes)."""

    def __init__(
        self,
        side: Side,
        link: Link,
        identity: Identity,
        *,
        nonce: bytes,
        server: str,
        version: str,
        fingerprint: str = "",
    ) -> None:
        """Prepare the handshake. `fingerprint`: that of the listener's self-signed certificate, or empty."""
        self.side, self.link, self.identity = side, link, identity
        self.fingerprint = fingerprint
        self.nonce, self.server, self.version = nonce, server, version
        self.phase = SessionPhase.AWAITING_PROOF if side is Side.LISTENING else SessionPhase.AWAITING_CHALLENGE
        self.peer: Credential | None = None
        self.peer_version = ""  # the dialing peer's program version, as claimed
        self._offset_s = 0.0
        self._outgoing: list[bytes] = []

    def start(self, now: float) -> None:
        """Queue the challenge if this is the listening side."""
        if self.side is Side.LISTENING:
            challenge = m.Challenge(protocol=m.PROTOCOL, server=self.server, nonce=self.nonce, time=now)
            self._outgoing.append(encode(challenge))

    def outgoing(self) -> list[bytes]:
        """Return the messages to send, in order, and empty the queue."""
        ready, self._outgoing = self._outgoing, []
        return ready

    def send(self, body: m.Message | Frame) -> None:
        """Queue a message or frame. If the link is not open, drop it, because the next hello repeats everything."""
        if self.phase is SessionPhase.OPEN:
            self._outgoing.append(encode_frame(body) if isinstance(body, Frame) else encode(body))

    def refuse(self, fault: Fault, retry_after_s: float = -1.0) -> Failed:
        """Close the session and queue a refusal with a numbered reason."""
        text = fault.text[:2000]  # the other side would reject a longer text, and with it the reason
        self._outgoing.append(encode(m.Refusal(code=fault.code, text=text, retry_after_s=retry_after_s)))
        self.phase = SessionPhase.CLOSED
        return Failed(fault, remote=False, retry_after_s=retry_after_s)

    def receive(self, data: bytes | memoryview, now: float) -> Event | None:
        """Process one message from the socket. Return an event, or None if there is nothing to report."""
        if self.phase is SessionPhase.CLOSED:
            return None
        limit = m.MAX_MESSAGE if self.phase is SessionPhase.OPEN else m.MAX_HANDSHAKE
        if len(data) > limit:
            return self.refuse(Fault.of("E210", size=len(data), limit=limit))
        body = decode(data)
        match body:
            case Malformed():
                return self.refuse(Fault.of("E206", reason=body.reason))
            case Frame():
                if self.phase is SessionPhase.OPEN and body.kind in FRAMES.get((self.side, self.link), ()):
                    return MessageReceived(body)
                return self.refuse(Fault.of("E208", message="frame"))
        if type(body) not in RECEIVABLE[self.side, self.link, self.phase]:
            return self.refuse(Fault.of("E208", message=type(body).__name__))
        return self._accept(body, now)

    def _accept(self, body: m.AnyMessage, now: float) -> Event | None:
        match body:
            case m.Refusal():
                self.phase = SessionPhase.CLOSED
                return Failed(Fault(body.code, body.text), remote=True, retry_after_s=body.retry_after_s)
            case m.Challenge():
                return self._answer(body, now)
            case m.Authenticate():
                return self._admit(body, now)
            case m.Welcome():
                return self._enter(body, now)
        return MessageReceived(body)

    def _answer(self, challenge: m.Challenge, now: float) -> Event | None:
        if challenge.protocol != m.PROTOCOL:
            return self.refuse(Fault.of("E205", theirs=m.PROTOCOL, ours=challenge.protocol))
        if challenge.server != self.server:
            return self.refuse(Fault.of("E217"))
        self._offset_s = challenge.time - now
        if abs(self._offset_s) > CLOCK_TOLERANCE_S:
            return self.refuse(Fault.of("E204", minutes=round(abs(self._offset_s) / 60)))
        assert self.identity.credential is not None
        proof = sign(self.identity.key, LINK, self._claim(self.server, challenge.nonce, self.nonce))
        self._outgoing.append(
            encode(
                m.Authenticate(
                    protocol=m.PROTOCOL,
                    version=self.version,
                    credential=self.identity.credential,
                    proof=proof.signature,
                    nonce=self.nonce,
                )
            )
        )
        self._challenge = challenge
        self.phase = SessionPhase.AWAITING_WELCOME
        return None

    def _admit(self, body: m.Authenticate, now: float) -> Event | None:
        if body.protocol != m.PROTOCOL:
            return self.refuse(Fault.of("E205", theirs=body.protocol, ours=m.PROTOCOL))
        credential = verify(body.credential, self.identity.site_key, now)
        if isinstance(credential, Fault):
            return self.refuse(credential)
        claim = self._claim(self.server, self.nonce, body.nonce)
        if not is_signed_by(credential.key, LINK, Signed(claim, body.proof)):
            return self.refuse(Fault.of("E209"))
        self.peer, self.peer_version = credential, body.version
        proof = sign(self.identity.key, LINK, self._claim("welcome", self.nonce, body.nonce))
        self._outgoing.append(encode(m.Welcome(credential=self.identity.credential, proof=proof.signature)))
        self.phase = SessionPhase.OPEN
        return Opened(credential, 0.0)

    def _enter(self, body: m.Welcome, now: float) -> Event | None:
        key = self.identity.site_key
        if self.link is not Link.CONTROL:
            listener = self._listener(body.credential, now)
            if isinstance(listener, Fault):
                return self.refuse(listener)
            self.peer, key = listener, listener.key
        claim = self._claim("welcome", self._challenge.nonce, self.nonce)
        if not is_signed_by(key, LINK, Signed(claim, body.proof)):
            return self.refuse(Fault.of("E217"))
        self.phase = SessionPhase.OPEN
        return Opened(self.peer, self._offset_s)

    def _listener(self, signed: Signed | None, now: float) -> Credential | Fault:
        """Return the listener's credential, or a fault: E217 if it is not for the dialed machine and our run.

        The credential's expiry is checked with our own clock. If a listener could set the time, it could extend its own
        credential.
        """
        if signed is None:
            return Fault.of("E217")
        credential = verify(signed, self.identity.site_key, now)
        if isinstance(credential, Fault):
            return credential
        is_meant = credential.machine == self.server and credential.role in LISTENING_ROLES
        is_of_the_run = credential.covers(self._own_run()) or self._own_run() == ANY_RUN
        is_everybodys = credential.role is Role.RELAY or credential.run != ANY_RUN
        return credential if is_meant and is_of_the_run and is_everybodys else Fault.of("E217")

    def _own_run(self) -> RunId:
        assert self.identity.credential is not None
        return msgspec.msgpack.decode(self.identity.credential.payload, type=Credential).run

    def _claim(self, server: str, nonce: bytes, own: bytes) -> bytes:
        return msgspec.msgpack.encode((server, nonce, own, self.fingerprint))
