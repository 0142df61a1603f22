"""Handshake messages: the two ends of a link prove who they are."""

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
    """The listening side speaks first. `time` is its UTC clock in seconds."""

    protocol: Small
    server: Short
    nonce: Nonce
    time: Clock


class Authenticate(Message, frozen=True, kw_only=True):
    """The dialling side's credential, and a proof that it holds the key (a signature over server and nonce)."""

    protocol: Small
    version: Short
    credential: Signed
    proof: Signature
    nonce: Nonce


class Welcome(Message, frozen=True, kw_only=True):
    """The link is open. A relay proves itself with its own credential, the site with its key alone."""

    credential: Signed | None
    proof: Signature


class Refusal(Message, frozen=True, kw_only=True):
    """A numbered error after which the sender closes the link. `retry_after_s` below 0: do not return."""

    code: Short
    text: Text
    retry_after_s: Wait = -1.0
