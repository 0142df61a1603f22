"""The base classes of messages, and the bounds of every number that is decoded."""

from typing import Annotated

from msgspec import Meta, Struct

from peer_agent.protocol.identifiers import (
    Count,
    Digest,
    Medium,
    Run,
    Small,
)
from peer_agent.protocol.log.records import Unit

PROTOCOL = 2
MAX_HANDSHAKE = 8 * 1024  # bytes of a message before a link is open: an unknown peer gets no more of our memory
MAX_MESSAGE = 8 * 1024 * 1024  # bytes; a frame's own length follows from the plan

Path = Annotated[tuple[Digest, ...], Meta(max_length=32)]  # up a Merkle tree
Units = Annotated[tuple[Unit, ...], Meta(max_length=100_000)]
StateDigest = Annotated[str, Meta(pattern="^([0-9a-f]{16})?$")]
Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Index = Annotated[int, Meta(ge=-1, le=2**53)]  # of a log entry, or a step; -1: none
# None of these numbers, nor a sum of a thousand of them, leaves float64.
Nats = Annotated[float, Meta(ge=0, le=1e15)]  # a summed loss
Norm = Annotated[float, Meta(ge=0, le=1e45)]  # the norm of 2^31 float32 values is below this
Squares = Annotated[float, Meta(ge=0, le=1e90)]
Clock = Annotated[float, Meta(ge=0, le=1e12)]  # seconds of UTC
Seconds = Annotated[float, Meta(ge=0, le=1e6)]  # since a plan came
Wait = Annotated[float, Meta(ge=-1, le=1e9)]  # below 0: none


class Message(Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of every message: a tag on the wire, bounded fields, no others."""


class Attempted(Message, frozen=True, kw_only=True):
    """Base of messages after the cut: they name their attempt (rule 2), and older ones are dropped."""

    run: Run
    step: Count
    fence: Medium
    attempt: Small
