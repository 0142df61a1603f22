"""Handshake messages, with which both ends of a link prove their identity."""

from peer_agent.protocol.credentials import Signed
from peer_agent.protocol.identifiers import (
    Nonce,
    Short,
    Signature,
    Small,
    Text,
)
from peer_agent.protocol.messages.base import Clock, Message, Wait


class Challenge(Message, frozen=True, kw_only=True):
    """The first message on a link, from the listening side. `time`: the sender's clock, in UTC seconds."""

    protocol: Small
    server: Short
    nonce: Nonce
    time: Clock


class Authenticate(Message, frozen=True, kw_only=True):
    """The dialing side's credential, and its signature over the server's name, both nonces and the fingerprint."""

    protocol: Small
    version: Short
    credential: Signed
    proof: Signature
    nonce: Nonce


class Welcome(Message, frozen=True, kw_only=True):
    """The listening side's proof, which opens the link. A relay adds its credential; the site proves only its key."""

    credential: Signed | None
    proof: Signature


class Refusal(Message, frozen=True, kw_only=True):
    """A numbered error. The sender then closes the link. The receiver must not reconnect if `retry_after_s` < 0."""

    code: Short
    text: Text
    retry_after_s: Wait = -1.0
